# SPDX-License-Identifier: Apache-2.0
"""`Groups`: device tensors with the starts and ends of a run's groups; checks of such tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from cutegemm import checks
from cutegemm.errors import InputError, field_error
from cutegemm.running.arguments.describe import check_tensor

INTEGERS = (torch.int32, torch.int64)
TAILS = ("zero", "undefined")
# names of the tensors of group ends; a call has exactly one
TOLD = ("offs", "cu_seqlens", "counts")


@dataclass(frozen=True)
class Grouping:
    """The form of a call's groups, and how the call passes them.

    Attributes:
        form: "rows", "columns", "masked" or "depth" (`request.group_forms.FORMS`).
        name: of the tensor: "offs", "cu_seqlens" or "counts".
        tail: whether rows outside all groups are zeroed.
        indexed: whether a tensor of indices selects the rows of A that are multiplied.
    """

    form: str
    name: str
    tail: bool = True
    indexed: bool = False

    @property
    def lead(self) -> int:
        """The number of elements before the ends: 1 for cu_seqlens."""
        return 1 if self.name == "cu_seqlens" else 0

    @property
    def after(self) -> str:
        """The content of rows outside all groups, one of `TAILS`."""
        # an int index, because torch 2.11's Dynamo does not support a bool
        return TAILS[0 if self.tail else 1]

    @property
    def text(self) -> str:
        """Form, name and tail as text, for the op."""
        return f"{self.form}:{self.name}:{self.after}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Groups:
    """The groups of a run. The host never reads these tensors, so a captured run can be replayed with other values.

    Give one of `offs`, `cu_seqlens` and `counts`: contiguous, int32 or int64, on A's device. Values outside the
    axis, or before an earlier group's end, are clamped.

    Attributes:
        offs: (G,): group g ends before offs[g] and starts at the previous group's end.
        cu_seqlens: (G + 1,): the first group's start, then the ends.
        counts: (G,): number of leading rows that are multiplied in each batch of a (G, C, K).
        rows: (R,) indices of the rows of A to multiply, in groups; D has R rows. An out-of-range index reads zeros.
        tail: the content of rows of D outside all groups: "zero", or "undefined", which does not write them.

    Raises:
        InputError: none or several of the three are given, one is not an integer tensor, or the tail is unknown.

    Example:
        >>> groups = Groups(offs=torch.tensor([3, 3, 8]))
        >>> groups.how(torch.empty(8, 16), torch.empty(3, 16, 24)).form
        'rows'
    """

    offs: Any = None
    cu_seqlens: Any = None
    counts: Any = None
    rows: Any = None
    tail: str = "zero"

    def __post_init__(self) -> None:
        check_tail(self.tail)
        given = [x for x in TOLD if getattr(self, x) is not None]
        if not given:
            rule = "groups need offs, (G,), or cu_seqlens, (G + 1,); masked batches counts, (G,)"
            raise field_error(InputError, "offs", None, rule)
        if len(given) > 1:
            rule = f"must not be given with {given[0]}; give one of {', '.join(TOLD)}"
            raise field_error(InputError, given[1], getattr(self, given[1]), rule)
        for x in (given[0], *(["rows"] if self.rows is not None else [])):
            check_tensor(x, getattr(self, x), (1,), INTEGERS)

    @property
    def name(self) -> str:
        """The name of the tensor of group ends."""
        return next(x for x in TOLD if getattr(self, x) is not None)

    @property
    def ends(self) -> Any:
        """That tensor."""
        return getattr(self, self.name)

    def how(self, a: Any, b: Any) -> Grouping:
        """The form of the groups, from the operands' dimensions.

        Raises:
            InputError: no form has these dimensions.
        """
        return Grouping(_form(a, b, self), self.name, self.tail == "zero", self.rows is not None)


def check_tail(tail: Any) -> None:
    """Refuse a tail that is not one of `TAILS`.

    Raises:
        InputError: it is another value.
    """
    if not isinstance(tail, str) or tail not in TAILS:
        raise field_error(InputError, "tail", tail, f"must be one of {', '.join(TAILS)}", "zero")


def _form(a: Any, b: Any, groups: Groups) -> str:
    """The operands' form, one of `request.group_forms.FORMS`."""
    name, shape = groups.name, tuple(groups.ends.shape)
    for field, x in (("a", a), ("b", b)):
        if not isinstance(x, torch.Tensor):
            raise InputError(f"must be a torch.Tensor, got {type(x).__name__}", field=field)
    dims = (a.dim(), b.dim())
    if dims == (3, 3):
        if name == "counts":
            return "masked"
        raise field_error(InputError, name, shape, "one batch of a per group needs counts, (G,)")
    found = {(2, 3): "rows", (3, 2): "columns", (2, 2): "depth"}.get(dims)
    if found is None:
        legal = "(M, K) and (G, K, N), (G, M, K) and (K, N), (M, K) and (K, N), or (G, C, K) and (G, K, N)"
        rule = f"a and b must be {legal}"
        raise field_error(
            InputError, "a.dim()" if a.dim() not in (2, 3) else "b.dim()", f"{dims[0]} and {dims[1]}", rule
        )
    if name == "counts":
        rule = "groups of rows, of columns or along K need offs, (G,), or cu_seqlens, (G + 1,)"
        raise field_error(InputError, name, shape, rule)
    return found


def check_index(name: str, index: Any, extent: int, like: torch.Tensor, count: int | None = None) -> None:
    """Refuse indices that are not an integer vector on the device of `like`.

    Args:
        name: of the argument; index: its value.
        extent: indices must be in [0, extent).
        like: the tensor whose device it must be on.
        count: the number of indices, if known.

    Raises:
        InputError: they are not, or under CUTEGEMM_CHECK=1 one is out of range; that check waits for the device, and is
            skipped where the host cannot read them (`_readable`).
    """
    check_tensor(name, index, (1,), INTEGERS)
    if index.device != like.device:
        rule = f"must be a's device, {like.device}"
        raise field_error(InputError, f"{name}.device", str(index.device), rule)
    # format the rule only when it is raised; formatting a symbolic count would make torch.compile specialize on it
    if count is not None and index.shape[0] != count:
        rule = f"must be ({count},), one index per row"
        raise field_error(InputError, f"{name}.shape", tuple(index.shape), rule)
    if checks.switch("CUTEGEMM_CHECK") and _readable(index):
        _, good = inside(index, extent)
        if not bool(good.all()):
            first = int((~good).nonzero()[0])
            raise field_error(InputError, f"{name}[{first}]", int(index[first]), f"must be in [0, {extent})")


def _readable(x: torch.Tensor) -> bool:
    """Whether the host may read a tensor's values: not of a meta, fake or mapped one, nor while a call is traced."""
    if torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._len_torch_dispatch_stack():
        return False
    return type(x) is torch.Tensor and not (x.is_meta or is_functorch_wrapped_tensor(x))


def inside(index: torch.Tensor, extent: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(indices clamped to [0, extent), whether each was in range)."""
    return index.clamp(0, max(extent - 1, 0)).long(), (index >= 0) & (index < extent)


def agree(field: str, value: object, holds: bool, rule: str) -> None:
    """Raise the error of a field unless `holds`.

    Raises:
        InputError: `holds` is false.
    """
    if not holds:
        raise field_error(InputError, field, value, rule)


__all__ = ["INTEGERS", "TAILS", "Grouping", "Groups", "agree", "check_index", "check_tail", "inside"]
