# SPDX-License-Identifier: Apache-2.0
"""Names of contenders that are not stages, as in results, and the split-K problem."""

BASELINE = "cublas"  # torch's matmul
BUILDER = "cutegemm"  # the kernel that cutegemm chooses
SPLIT_K_SHAPE = (128, 128, 16_384)  # few tiles, long K


def one_part(key: str) -> str:
    """Return the contender name of a split-K stage that does not split."""
    return f"{key}, one part"


def twin_name(key: str) -> str:
    """Return the contender name of a stage's twin: the equivalent cutegemm kernel."""
    return f"{key} (DSL)"


def knob_name(field: str, value: object) -> str:
    """Return the contender name of a spec that differs from the previous one in `field`."""
    return f"DSL, {field} {value}"
