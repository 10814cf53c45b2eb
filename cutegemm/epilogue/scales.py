# SPDX-License-Identifier: Apache-2.0
"""Scales of operands: of a whole operand, of its rows, or of its blocks, each of 128 elements along K.

What one number of an operand's row is multiplied by, the epilogue multiplies the sums by: nodes of the graph. What
differs along K the mainloop multiplies the partial sums of 128 elements of K by, as it promotes them: `Graph.scales`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cutegemm import checks
from cutegemm.errors import InputError, SpecError, field_error

K_BLOCK = 128  # elements of K that have one scale
TENSOR, ROW = "tensor", "row"
BLOCKS = (("block", 1, K_BLOCK), ("block", K_BLOCK, K_BLOCK))
KINDS = (TENSOR, ROW, *BLOCKS)
Kind = str | tuple[str, int, int]
# kinds of tensors that hold scales of blocks (`BlockScale.kind`)
BLOCK_KINDS = ("blocks_m", "blocks_n")
# blocks of K that a tensor of scales may have beyond the operand's: torch pads to a multiple
PADDED = 4
AXES = {"a": "m", "b": "n"}
UE8M0 = "ue8m0"  # the type of scales that are powers of two
NAMES = ("scale_a", "scale_b")  # what a run takes them by
# shapes of one number for a whole operand; torch's `scaled_mm` has the second and third
SINGLE = ((), (1,), (1, 1))


@dataclass(frozen=True)
class BlockScale:
    """Scales of an operand's blocks, as a kernel sees them: fp32, (blocks of rows or columns, blocks of K).

    Attributes:
        name: what a run passes them by.
        axis: of the accumulator along which they differ, "m" (A's) or "n" (B's).
        extent: rows or columns that share one, 1 or 128.
    """

    name: str
    axis: str
    extent: int

    @property
    def kind(self) -> str:
        """The kind of tensor (`epilogue.call_order.ROLES`)."""
        return f"blocks_{self.axis}"

    @property
    def transposed(self) -> BlockScale:
        """The same of the transposed product."""
        return replace(self, axis={"m": "n", "n": "m"}[self.axis])

    def shape(self, m: int, n: int, k: int) -> tuple[int, int]:
        """(blocks of rows or columns, blocks of K) of a product of these extents."""
        return -(-(m if self.axis == "m" else n) // self.extent), -(-k // K_BLOCK)

    def fits(self, shape: tuple[int, ...], wanted: tuple[int, int]) -> bool:
        """Whether a tensor of a shape holds them; blocks of K may be padded to a multiple of four."""
        most = -(-wanted[1] // PADDED) * PADDED
        return len(shape) == 2 and shape[0] == wanted[0] and wanted[1] <= shape[1] <= most


def checked(field: str, value: object, legal: tuple[Kind, ...] = KINDS) -> Kind:
    """The kind of scales that a spec names.

    Raises:
        SpecError: it is not among the legal ones.
    """
    found = tuple(value) if isinstance(value, (tuple, list)) else value
    if isinstance(found, tuple):
        found = found[:1] + (checks.integers(found[1:]) or ())
    for kind in legal:
        if type(found) is type(kind) and found == kind:
            return kind
    *others, last = map(repr, legal)
    raise field_error(SpecError, field, value, f"must be {', '.join(others)} or {last}", legal[0])


def single(name: str, scale: Any) -> Any:
    """One scale for a whole operand, a 0-d view of a tensor or array of shape (), (1,) or (1, 1).

    Args:
        name: of the argument, for errors.
        scale: a strided tensor, or an array of another library.

    Raises:
        InputError: it has another shape.
    """
    shape = tuple(scale.shape)
    if shape not in SINGLE:
        rule = "must be (), (1,) or (1, 1), one number for the whole operand"
        raise field_error(InputError, f"{name}.shape", shape, rule, ())
    return scale.reshape(()) if shape else scale
