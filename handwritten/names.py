# SPDX-License-Identifier: Apache-2.0
"""Names of contenders that are not stages, as they stand in results."""

BASELINE = "cublas"  # torch's matmul
BUILDER = "cutegemm"  # the builder's own choice of kernel


def twin_name(key: str) -> str:
    """Return the contender name of a stage's twin from the builder."""
    return f"{key} (DSL)"


def knob_name(field: str, value: object) -> str:
    """Return the contender name of a spec of the builder's that differs from the one before it in `field`."""
    return f"DSL, {field} {value}"
