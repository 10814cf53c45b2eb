# SPDX-License-Identifier: Apache-2.0
"""`GemmSpec`: what to build. Pure Python, built without a GPU, tensors or torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from cutegemm import checks
from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.arch.instructions import INSTRUCTIONS, types_fault
from cutegemm.config.invariants import splits, tiles
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import SpecError, field_error
from cutegemm.families import abilities_of, reason

Auto = Literal["auto"]
AUTO: Final[Auto] = "auto"

SCHEDULES = ("cooperative", "pingpong", "multistage", "simt")
SWIZZLES = ("128B", "64B", "32B", "none")
LOADS = ("tma", "gather", "shift", "cp_async", "relayout")
STORES = ("tma", "staged", "direct")
SCHEDULERS = ("persistent", "per_tile", "stream_k", "dynamic")
TENSOR_CORE_FIELDS = (
    "cluster", "swizzle", "consumers", "a_load", "b_load", "store", "epilogue_stages", "input_stages",
    "scheduler", "raster", "sms", "swap", "split_reduction", "ctas_per_sm", "trigger", "constant",
    "evict_first", "evict_last",
)  # fmt: skip
TILE_N_STEP = min(map(tiles.columns_step, INSTRUCTIONS.values()))  # columns, whatever the operands' types
MAX_TILE = 1 << 16
MAX_STAGES = 16
MAX_CONSUMERS = 3
PINGPONG_CONSUMERS = 2
MAX_GROUP = 4096
MAX_SMS = 1024
SPLIT_REDUCTIONS = ("cluster", "workspace", "launch", "atomic")
MAX_SPLITS = 256
TRIGGERS = ("never", "start", "loads")
MAX_CTAS_PER_SM = 2


@dataclass(frozen=True)
class Tile(checks.Named):
    """The CTA tile: `m` x `n` elements of D, advanced `k` elements of K per mainloop stage."""

    m: int
    n: int
    k: int = 64

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            value = checks.integer(SpecError, f"tile.{name}", getattr(self, name), 1, MAX_TILE)
            object.__setattr__(self, name, value)

    def __iter__(self) -> Iterator[int]:
        return iter((self.m, self.n, self.k))


@dataclass(frozen=True, kw_only=True)
class GemmSpec(checks.Named):
    """A GEMM kernel, declared. Every field defaults to "auto": the planner chooses.

    A given field is honoured exactly or refused with an error; it is never silently changed. What is "auto" gives
    way to what is given: a spec is refused only if its given fields contradict one another or the problem.
    Numbers may be of any integer type and tuples may be lists; the spec keeps Python's own.

    Attributes:
        a_dtype, b_dtype, c_dtype, d_dtype: "fp16", "bf16" or "fp32" (names, `DType` or torch dtypes).
        acc_dtype: accumulator type; "fp32".
        a_major: "k" (A[m, k] with unit stride along k) or "m".
        b_major: "n" (B[k, n] with unit stride along n) or "k".
        c_major, d_major: "n" (row-major) or "m" (column-major).
        tile: `Tile(m, n, k)`, elements; on the CUDA cores one of `planning.simt_tiles.TILES`.
        cluster: (m, n) CTAs that share operands by TMA multicast; or (m, n, k) with k CTAs beside each other that take
            parts of K and add them up over distributed shared memory.
        stages: shared-memory buffers of the mainloop ring; 2 of CUDA-core tiles that come through registers.
        swizzle: "128B", "64B", "32B" or "none": the shared-memory layout of A and B.
        schedule: "cooperative" (a producer warpgroup feeds consumers that share a tile), "pingpong" (it
            feeds two that work on a tile each, so that one's epilogue runs under the other's mainloop), "multistage"
            (no warp specialisation; every warpgroup computes, one thread loads) or "simt" (CUDA cores).
        consumers: warpgroups that compute, 1 to 3.
        a_load, b_load: "tma"; by the producer's threads "cp_async" (copies of 4, 8 or 16 bytes, of which lines and base
            must be multiples), "shift" (aligned words, shifted together; unit stride, any leading dimension) or
            "gather" (single elements, any strides); "relayout" (a kernel copies the operand into TMA-addressable
            workspace first).
        store: "tma" (through shared memory), "staged" (through shared memory, coalesced stores, any
            strides) or "direct" (from registers, any strides).
        epilogue_stages: shared-memory buffers of each output's store, per consumer warpgroup.
        input_stages: shared-memory pieces of the epilogue's matrix inputs that are fetched under the mainloop,
            per consumer warpgroup.
        scheduler: "persistent" (a CTA per SM walks many tiles), "per_tile" (a CTA per tile), "stream_k" (a CTA per
            SM, whose last tiles are cut along K so that all end together; cooperative) or "dynamic" (a CTA per SM that
            takes its tiles from a counter one by one, for GPUs whose SMs other kernels occupy).
        raster: ("m" | "n", group): tiles are walked in panels `group` clusters wide along that axis.
        sms: use at most this many SMs.
        swap: compute D^T = B^T A^T, so that D's columns lie along the instruction's 64 rows and D's rows, in steps
            of 8, along its columns: for D of few rows. Every field stays in D's coordinates; a tile's m is then a
            multiple of 8 up to 256 and its n one of 64.
        split_k: parts of K that CTAs add up apart, for few tiles and deep K; 1 is not to split. A multiple of a
            cluster's extent along K; 1, 2, 4 or 8 on the CUDA cores. The epilogue is applied once, after the sum.
        split_reduction: how parts are added, to the same bits on every run: "cluster" (over the shared memory of a
            cluster whose third extent is `split_k`: no workspace, one launch), "workspace" (by the last CTA to arrive)
            or "launch" (by a launch of its own on all SMs); or "atomic", as they come, so that last bits differ from
            run to run: only where it is asked for. A cluster adds its CTAs' splits first; "launch" needs two clusters.
        ctas_per_sm: CTAs that share an SM, 1 or 2: one's start and end then lie under the other's mainloop.
        trigger: when the next launch on the stream may begin its set-up (programmatic dependent launch): "never" before
            this one has ended, at its "start", or after the last of its "loads". Whatever it is, a kernel waits for
            everything before it to end before it reads or writes anything but what `constant` names.
        constant: operands, ("a",), ("b",) or both, that no launch writes which may still run when this one starts,
            such as weights: not the last one, nor one before it. Their first tiles are loaded while it still runs.
        evict_first, evict_last: which of "a", "b" and "d" (all outputs) TMA moves with the hint that L2 give their
            lines up first, as what is used once, or last, as what many tiles share. By default what one row of tiles
            reads and L2 could hardly keep goes first.
        batch_invariant: whether a row of D must have the same bits whatever M is and wherever the row lies, on one kind
            of device. The order of additions along K then depends on N and K alone: K is cut only as `split_k` says,
            and where the epilogue reduces along rows all tiles are equally wide.
        epilogue: an expression graph (`cutegemm.epilogue`); "auto" is alpha * A @ B + beta * C.

    Raises:
        SpecError: a field has no legal meaning; names the field, value, rule and nearest legal value.

    Example:
        >>> GemmSpec(tile=Tile(128, 256, 64), cluster=(2, 1))
        GemmSpec(tile=Tile(m=128, n=256, k=64), cluster=(2, 1))
    """

    a_dtype: Any = AUTO
    b_dtype: Any = AUTO
    c_dtype: Any = AUTO
    d_dtype: Any = AUTO
    acc_dtype: Any = AUTO
    a_major: str = AUTO
    b_major: str = AUTO
    c_major: str = AUTO
    d_major: str = AUTO
    tile: Tile | Auto = AUTO
    cluster: tuple[int, ...] | Auto = AUTO
    stages: int | Auto = AUTO
    swizzle: str = AUTO
    schedule: str = AUTO
    consumers: int | Auto = AUTO
    a_load: str = AUTO
    b_load: str = AUTO
    store: str = AUTO
    epilogue_stages: int | str = AUTO
    input_stages: int | str = AUTO
    scheduler: str = AUTO
    raster: tuple[str, int] | Auto = AUTO
    sms: int | Auto = AUTO
    swap: bool | Auto = AUTO
    split_k: int | Auto = AUTO
    split_reduction: str = AUTO
    ctas_per_sm: int | Auto = AUTO
    trigger: str = AUTO
    constant: tuple[str, ...] | Auto = AUTO
    evict_first: tuple[str, ...] | Auto = AUTO
    evict_last: tuple[str, ...] | Auto = AUTO
    batch_invariant: bool | Auto = AUTO
    epilogue: Graph | Auto = AUTO

    def __post_init__(self) -> None:
        for name in ("a_dtype", "b_dtype", "c_dtype", "d_dtype", "acc_dtype"):
            if not _is_auto(getattr(self, name)):
                object.__setattr__(self, name, as_dtype(getattr(self, name), name))
        for name, value in (*_choices(self), *_numbers(self), *_tuples(self)):
            object.__setattr__(self, name, value)
        if not _is_auto(self.epilogue) and not isinstance(self.epilogue, Graph):
            hint = (
                " (call it, or decorate your own function with epi.define)" if callable(self.epilogue) else ""
            )
            raise field_error(SpecError, "epilogue", self.epilogue, f"must be an epilogue graph{hint}")
        if isinstance(self.epilogue, Graph) and self.epilogue.gated_axis == "m":
            rule = "B's columns hold a gated pair, not A's rows; give the graph itself, not its transpose"
            raise field_error(SpecError, "epilogue", f"{self.epilogue}", rule)
        for name in ("swap", "batch_invariant"):
            if not _is_auto(getattr(self, name)) and not isinstance(getattr(self, name), bool):
                raise field_error(SpecError, name, getattr(self, name), "must be True or False")
        if not _is_auto(self.constant):
            names = tuple(self.constant) if isinstance(self.constant, (tuple, list)) else ()
            if not names or not all(checks.among(x, ("a", "b")) for x in names):
                rule = 'must be a tuple of "a" and "b"'
                raise field_error(SpecError, "constant", self.constant, rule, ("b",))
            object.__setattr__(self, "constant", tuple(sorted(set(names))))
        for name in ("evict_first", "evict_last"):
            if not _is_auto(getattr(self, name)):
                object.__setattr__(self, name, _evicted(self, name))
        _check_tile(self)
        _check_together(self)

    @property
    def plane(self) -> tuple[int, int] | None:
        """The given CTAs of a cluster along (m, n); None where they are left open."""
        return None if isinstance(self.cluster, str) else (self.cluster[0], self.cluster[1])

    @property
    def depth(self) -> int | None:
        """The given CTAs of a cluster along K; None where they are left open."""
        return self.cluster[2] if isinstance(self.cluster, tuple) and len(self.cluster) == 3 else None

    def given(self) -> dict[str, Any]:
        """The fields that are not "auto", in declaration order."""
        fields = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return {name: value for name, value in fields if not (isinstance(value, str) and value == AUTO)}

    def __repr__(self) -> str:
        return f"GemmSpec({', '.join(f'{name}={value!r}' for name, value in self.given().items())})"


def _evicted(spec: GemmSpec, field: str) -> tuple[str, ...]:
    """The given names of a cache hint, in order; none in both hints."""
    value = getattr(spec, field)
    names = tuple(value) if isinstance(value, (tuple, list)) and value != [] else (None,)
    if not all(isinstance(x, str) and x in ("a", "b", "d") for x in names):
        raise field_error(SpecError, field, value, 'must be a tuple of "a", "b" and "d"', ("d",))
    if field == "evict_last" and set(names) & set(() if _is_auto(spec.evict_first) else spec.evict_first):
        raise field_error(SpecError, field, value, "must name nothing that evict_first names", AUTO)
    return tuple(sorted(set(filter(None, names))))


def _is_auto(value: object) -> bool:
    return isinstance(value, str) and value == AUTO


def _choices(spec: GemmSpec) -> Iterator[tuple[str, str]]:
    """The given fields that are one of a few names."""
    legal = {
        "a_major": ("k", "m"), "b_major": ("n", "k"), "c_major": ("n", "m"), "d_major": ("n", "m"),
        "swizzle": SWIZZLES, "schedule": SCHEDULES, "a_load": LOADS, "b_load": LOADS, "store": STORES,
        "scheduler": SCHEDULERS, "split_reduction": SPLIT_REDUCTIONS, "trigger": TRIGGERS,
    }  # fmt: skip
    for name, values in legal.items():
        if not _is_auto(getattr(spec, name)):
            yield name, checks.choice(SpecError, name, getattr(spec, name), values)


def _numbers(spec: GemmSpec) -> Iterator[tuple[str, int]]:
    """The given fields that are one number."""
    highest = {
        "stages": MAX_STAGES, "consumers": MAX_CONSUMERS, "epilogue_stages": MAX_STAGES, "input_stages": MAX_STAGES,
        "sms": MAX_SMS, "split_k": MAX_SPLITS, "ctas_per_sm": MAX_CTAS_PER_SM,
    }  # fmt: skip
    for name, high in highest.items():
        if not _is_auto(getattr(spec, name)):
            yield name, checks.integer(SpecError, name, getattr(spec, name), 1, high)


def _tuples(spec: GemmSpec) -> Iterator[tuple[str, object]]:
    """The given fields of several parts."""
    if not _is_auto(spec.tile) and not isinstance(spec.tile, Tile):
        if not isinstance(spec.tile, (tuple, list)) or len(spec.tile) not in (2, 3):
            raise field_error(SpecError, "tile", spec.tile, "must be Tile(m, n, k)")
        yield "tile", Tile(*spec.tile)
    if not _is_auto(spec.cluster):
        most = LIMITS.max_cluster
        rule = f"must be (m, n) or (m, n, k), m and n powers of two, of at most {most} CTAs"
        ctas = checks.integers(spec.cluster) or ()
        legal = len(ctas) in (2, 3) and all(x in (1, 2, 4, 8) for x in ctas[:2])
        if not legal or not 1 <= math.prod(ctas) <= most:
            raise field_error(SpecError, "cluster", spec.cluster, rule, (2, 1))
        yield "cluster", ctas
    if not _is_auto(spec.raster):
        rule = f'must be ("m" or "n", group) with a group from 1 to {MAX_GROUP}'
        pair = tuple(spec.raster) if isinstance(spec.raster, (tuple, list)) else ()
        if len(pair) != 2 or not isinstance(pair[0], str) or pair[0] not in ("m", "n"):
            raise field_error(SpecError, "raster", spec.raster, rule, ("m", 8))
        yield "raster", (pair[0], checks.integer(SpecError, "raster[1]", pair[1], 1, MAX_GROUP))


def tile_fault(
    tile: Tile, swap: bool = False, types: tuple[object, object] = (AUTO, AUTO)
) -> SpecError | None:
    """What keeps a tile from being made of whole warp-level instructions; None if nothing does.

    Args:
        swap: whether operands are swapped, so that the instruction's 64 rows lie along D's columns.
        types: of A and B; the least steps of all types where one is not given.
    """
    rows, columns = ("n", "m") if swap else ("m", "n")
    for axis, step in zip((rows, columns, "k"), tiles.least_steps(LIMITS, *types), strict=True):
        value = getattr(tile, axis)
        if value % step:
            nearest = max(step, round(value / step) * step)
            return field_error(SpecError, f"tile.{axis}", value, f"must be a multiple of {step}", nearest)
    rule, most = tiles.widest(LIMITS)
    if getattr(tile, columns) > most:
        return field_error(SpecError, f"tile.{columns}", getattr(tile, columns), rule, most)
    return None


def _check_tile(spec: GemmSpec) -> None:
    """The CTA tile must be made of whole warp-level instructions, one way round or the other; not on the CUDA cores."""
    cuda_cores = spec.schedule == "simt" or DType.FP32 in (spec.a_dtype, spec.b_dtype)
    if not isinstance(spec.tile, Tile) or cuda_cores:
        return
    types = (spec.a_dtype, spec.b_dtype)
    fault, swap = tile_fault(spec.tile, spec.swap is True, types), spec.swap is True
    if fault is not None and spec.swap == AUTO and tile_fault(spec.tile, True, types) is None:
        fault, swap = None, True
    if fault is not None:
        raise fault
    if isinstance(spec.consumers, int) and spec.schedule != "pingpong":
        axis, step = "n" if swap else "m", tiles.rows_step(LIMITS, spec.consumers)
        value = getattr(spec.tile, axis)
        if value % step:
            rule = f"{spec.consumers} consumer warpgroups need a multiple of {step} {'columns' if swap else 'rows'}"
            raise field_error(SpecError, f"tile.{axis}", value, rule, max(step, value // step * step))


def _check_together(spec: GemmSpec) -> None:
    """Fields that exclude one another."""
    if spec.acc_dtype not in (AUTO, DType.FP32):
        raise field_error(SpecError, "acc_dtype", spec.acc_dtype, "kernels accumulate in fp32", "fp32")
    if (fault := types_fault(spec.a_dtype, spec.b_dtype)) is not None:
        raise field_error(SpecError, *fault)
    if DType.FP32 in (spec.a_dtype, spec.b_dtype) and spec.schedule not in (AUTO, "simt"):
        rule = "fp32 operands run on the CUDA cores"
        raise field_error(SpecError, "schedule", spec.schedule, rule, "simt")
    _check_abilities(spec)
    _check_parts(spec)
    if spec.batch_invariant is True:
        _check_invariant(spec)
    if spec.schedule == "simt":
        _check_simt(spec)


def _check_abilities(spec: GemmSpec) -> None:
    """What the kernels of the given schedule cannot do; those of the CUDA cores have fields of their own."""
    if spec.schedule in (AUTO, "simt"):
        return
    row = abilities_of(spec.schedule)
    lacking = {
        "cluster": ("multicast", row.multicast or spec.plane in (None, (1, 1))),
        "a_load": ("loads", spec.a_load in (AUTO, "relayout", *row.loads)),
        "b_load": ("loads", spec.b_load in (AUTO, "relayout", *row.loads)),
        "consumers": ("consumers", spec.consumers in (AUTO, *row.consumers)),
        "scheduler": ("schedulers", spec.scheduler in (AUTO, *row.schedulers)),
    }
    for field, (what, able) in lacking.items():
        if not able:
            raise field_error(SpecError, field, getattr(spec, field), *reason(what, getattr(spec, field)))
    if (spec.depth or 1) > 1 and row.reductions == ("none",):
        raise field_error(SpecError, "schedule", spec.schedule, reason("reductions")[0], "cooperative")


def _check_parts(spec: GemmSpec) -> None:
    """Parts of K, a cluster's CTAs along it, and where they meet."""
    depth, parts = spec.depth or 1, spec.split_k
    if spec.scheduler == "stream_k":
        cuts = 'scheduler="stream_k" makes its own cuts along K'
        rules = {"split_k": cuts, "split_reduction": 'parts of a scheduler="stream_k" meet in workspace'}
        for field, only in splits.STREAMED.items():
            if getattr(spec, field) not in (AUTO, only):
                raise field_error(SpecError, field, getattr(spec, field), rules[field], only)
        if depth > 1:
            raise field_error(SpecError, "cluster", spec.cluster, cuts, spec.plane)
    if isinstance(parts, int) and not splits.whole(parts, depth):
        rule = f"must be a multiple of the {depth} parts that a cluster adds up"
        raise field_error(SpecError, "split_k", parts, rule, splits.nearest_whole(parts, depth))
    if spec.split_reduction == "cluster" and spec.depth is not None and parts not in (AUTO, depth):
        rule = f'split_reduction="cluster" adds up {depth} parts in a cluster of {spec.cluster}'
        raise field_error(SpecError, "split_k", parts, rule, depth)


def _check_invariant(spec: GemmSpec) -> None:
    """What makes a row's bits depend on M, or on the row's place."""
    for field, nearest in (("scheduler", "persistent"), ("split_reduction", "workspace")):
        if getattr(spec, field) in ("stream_k", "atomic"):
            rule = "adds along K in an order of M's or of chance, which batch_invariant=True excludes"
            raise field_error(SpecError, field, getattr(spec, field), rule, nearest)
    if isinstance(spec.epilogue, Graph) and any(x.op == "random" for x in spec.epilogue.nodes):
        rule = "the epilogue's random numbers are those of an element's place in D"
        raise field_error(SpecError, "batch_invariant", True, rule, False)


def _check_simt(spec: GemmSpec) -> None:
    """Fields of the tensor-core kernels have no meaning on the CUDA cores."""
    for name in TENSOR_CORE_FIELDS:
        if not _is_auto(getattr(spec, name)):
            rule = 'has no meaning for schedule="simt"'
            raise field_error(SpecError, name, getattr(spec, name), rule, AUTO)


def checked_spec(value: object) -> GemmSpec:
    """A spec that a caller gave.

    Raises:
        SpecError: it is none.
    """
    if not isinstance(value, GemmSpec):
        hint = ": call it" if value is GemmSpec else ""
        raise field_error(SpecError, "spec", value, f"must be a GemmSpec{hint}", GemmSpec())
    return value
