# SPDX-License-Identifier: Apache-2.0
"""Names of contenders that are not stages, as they stand in results, and the problem that split-K is for."""

BASELINE = "cublas"  # torch's matmul
BUILDER = "cutegemm"  # the builder's own choice of kernel
SPLIT_K_SHAPE = (128, 128, 16_384)  # few tiles, long K


def one_part(key: str) -> str:
    """Return the contender name of a split-K stage that does not split."""
    return f"{key}, one part"


def twin_name(key: str) -> str:
    """Return the contender name of a stage's twin from the builder."""
    return f"{key} (DSL)"


def knob_name(field: str, value: object) -> str:
    """Return the contender name of a spec of the builder's that differs from the one before it in `field`."""
    return f"DSL, {field} {value}"
