# SPDX-License-Identifier: Apache-2.0
"""`GemmSpec`: what to build. Pure Python, built without a GPU, tensors or torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cutegemm import hardware as hw
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import SpecError, field_error

AUTO = "auto"

SCHEDULES = ("cooperative", "pingpong", "multistage", "simt")
SWIZZLES = ("128B", "64B", "32B", "none")
LOADS = ("tma", "gather", "relayout")
STORES = ("tma", "staged", "direct")
SCHEDULERS = ("persistent", "per_tile")
TENSOR_CORE_FIELDS = (
    "tile", "cluster", "stages", "swizzle", "consumers", "a_load", "b_load", "store", "epilogue_stages",
    "input_stages", "scheduler", "raster", "sms",
)  # fmt: skip
TILE_N_STEP = 16  # columns: stmatrix.x4 writes 16 columns at once
MAX_STAGES = 16
MAX_CONSUMERS = 3
PINGPONG_CONSUMERS = 2
MAX_GROUP = 4096


@dataclass(frozen=True)
class Tile:
    """The CTA tile: `m` x `n` elements of D, advanced `k` elements of K per mainloop stage."""

    m: int
    n: int
    k: int = 64

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            _check_int(f"tile.{name}", getattr(self, name), 1, 1 << 16)

    def __iter__(self):
        return iter((self.m, self.n, self.k))


@dataclass(frozen=True, kw_only=True)
class GemmSpec:
    """A GEMM kernel, declared. Every field defaults to "auto": the planner chooses.

    A given field is honoured exactly or refused with an error; it is never silently changed.

    Attributes:
        a_dtype, b_dtype, c_dtype, d_dtype: "fp16", "bf16" or "fp32" (names, `DType` or torch dtypes).
        acc_dtype: accumulator type; "fp32".
        a_major: "k" (A[m, k] with unit stride along k) or "m".
        b_major: "n" (B[k, n] with unit stride along n) or "k".
        c_major, d_major: "n" (row-major) or "m" (column-major).
        tile: `Tile(m, n, k)`, elements.
        cluster: (m, n) CTAs that share operands by TMA multicast.
        stages: shared-memory buffers of the mainloop ring.
        swizzle: "128B", "64B", "32B" or "none": the shared-memory layout of A and B.
        schedule: "cooperative" (a producer warpgroup feeds consumers that share a tile), "pingpong" (it
            feeds two that work on a tile each, so that one's epilogue runs under the other's mainloop), "multistage"
            (no warp specialisation; every warpgroup computes, one thread loads) or "simt" (CUDA cores).
        consumers: warpgroups that compute, 1 to 3.
        a_load, b_load: "tma"; "gather" (loads through registers, any strides); "relayout" (a kernel
            copies the operand into TMA-addressable workspace first).
        store: "tma" (through shared memory), "staged" (through shared memory, coalesced stores, any
            strides) or "direct" (from registers, any strides).
        epilogue_stages: shared-memory buffers of each output's store, per consumer warpgroup.
        input_stages: shared-memory pieces of the epilogue's matrix inputs that are fetched under the mainloop,
            per consumer warpgroup.
        scheduler: "persistent" (a CTA per SM walks many tiles) or "per_tile" (a CTA per tile).
        raster: ("m" | "n", group): tiles are walked in panels `group` clusters wide along that axis.
        sms: use at most this many SMs.
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
    tile: Tile | str = AUTO
    cluster: tuple[int, int] | str = AUTO
    stages: int | str = AUTO
    swizzle: str = AUTO
    schedule: str = AUTO
    consumers: int | str = AUTO
    a_load: str = AUTO
    b_load: str = AUTO
    store: str = AUTO
    epilogue_stages: int | str = AUTO
    input_stages: int | str = AUTO
    scheduler: str = AUTO
    raster: tuple[str, int] | str = AUTO
    sms: int | str = AUTO
    epilogue: Graph | str = AUTO

    def __post_init__(self) -> None:
        for name in ("a_dtype", "b_dtype", "c_dtype", "d_dtype", "acc_dtype"):
            if getattr(self, name) != AUTO:
                object.__setattr__(self, name, as_dtype(getattr(self, name), name))
        if isinstance(self.tile, (tuple, list)):
            if len(self.tile) not in (2, 3):
                raise field_error(SpecError, "tile", self.tile, "must be Tile(m, n, k)")
            object.__setattr__(self, "tile", Tile(*self.tile))
        _check_choices(self)
        _check_numbers(self)
        _check_tile(self)
        _check_together(self)

    def given(self) -> dict[str, Any]:
        """The fields that are not "auto", in declaration order."""
        fields = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return {name: value for name, value in fields if not (isinstance(value, str) and value == AUTO)}

    def __repr__(self) -> str:
        return f"GemmSpec({', '.join(f'{name}={value!r}' for name, value in self.given().items())})"


def _is_auto(value: object) -> bool:
    return isinstance(value, str) and value == AUTO


def _check_int(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise field_error(SpecError, field, value, f"must be an integer from {low} to {high}")
    if not low <= value <= high:
        raise field_error(
            SpecError, field, value, f"must be from {low} to {high}", min(max(value, low), high)
        )


def _check_choices(spec: GemmSpec) -> None:
    choices = {
        "a_major": ("k", "m"), "b_major": ("n", "k"), "c_major": ("n", "m"), "d_major": ("n", "m"),
        "swizzle": SWIZZLES, "schedule": SCHEDULES, "a_load": LOADS, "b_load": LOADS, "store": STORES,
        "scheduler": SCHEDULERS,
    }  # fmt: skip
    for name, legal in choices.items():
        value = getattr(spec, name)
        if not _is_auto(value) and value not in legal:
            raise field_error(SpecError, name, value, f"must be one of {', '.join(legal)}")
    if not _is_auto(spec.tile) and not isinstance(spec.tile, Tile):
        raise field_error(SpecError, "tile", spec.tile, "must be Tile(m, n, k)")
    if not _is_auto(spec.epilogue) and not isinstance(spec.epilogue, Graph):
        what = " (call it, or decorate your own function with epi.define)" if callable(spec.epilogue) else ""
        raise field_error(SpecError, "epilogue", spec.epilogue, f"must be an epilogue graph{what}")


def _check_numbers(spec: GemmSpec) -> None:
    ranges = {"stages": MAX_STAGES, "consumers": MAX_CONSUMERS, "epilogue_stages": MAX_STAGES,
              "input_stages": MAX_STAGES, "sms": 1024}  # fmt: skip
    for name, high in ranges.items():
        if not _is_auto(getattr(spec, name)):
            _check_int(name, getattr(spec, name), 1, high)
    if not _is_auto(spec.cluster):
        rule = f"must be (m, n), each a power of two, m * n <= {hw.MAX_CLUSTER}"
        ok = isinstance(spec.cluster, tuple) and len(spec.cluster) == 2
        if not ok or any(type(c) is not int or c not in (1, 2, 4, 8) for c in spec.cluster):
            raise field_error(SpecError, "cluster", spec.cluster, rule, (2, 1))
        if spec.cluster[0] * spec.cluster[1] > hw.MAX_CLUSTER:
            raise field_error(SpecError, "cluster", spec.cluster, rule, (2, 1))
    if not _is_auto(spec.raster):
        rule = f'must be ("m" or "n", group) with a group from 1 to {MAX_GROUP}'
        if not isinstance(spec.raster, tuple) or len(spec.raster) != 2 or spec.raster[0] not in ("m", "n"):
            raise field_error(SpecError, "raster", spec.raster, rule, ("m", 8))
        _check_int("raster[1]", spec.raster[1], 1, MAX_GROUP)


def _check_tile(spec: GemmSpec) -> None:
    """The CTA tile must be made of whole warp-level instructions."""
    if _is_auto(spec.tile) or spec.schedule == "simt":
        return
    steps = {"m": hw.WGMMA_M, "n": TILE_N_STEP, "k": 16}
    for axis, step in steps.items():
        value = getattr(spec.tile, axis)
        if value % step:
            nearest = max(step, round(value / step) * step)
            raise field_error(SpecError, f"tile.{axis}", value, f"must be a multiple of {step}", nearest)
    if spec.tile.n > hw.WGMMA_MAX_N:
        rule = f"one wgmma has at most {hw.WGMMA_MAX_N} columns"
        raise field_error(SpecError, "tile.n", spec.tile.n, rule, hw.WGMMA_MAX_N)
    shared = not _is_auto(spec.consumers) and spec.schedule != "pingpong"
    if shared and spec.tile.m % (hw.WGMMA_M * spec.consumers):
        rows = hw.WGMMA_M * spec.consumers
        rule = f"{spec.consumers} consumer warpgroups need a multiple of {rows} rows"
        raise field_error(SpecError, "tile.m", spec.tile.m, rule, max(rows, spec.tile.m // rows * rows))


def _check_together(spec: GemmSpec) -> None:
    """Fields that exclude one another."""
    if spec.acc_dtype not in (AUTO, DType.FP32):
        raise field_error(SpecError, "acc_dtype", spec.acc_dtype, "kernels accumulate in fp32", "fp32")
    for name in ("a_dtype", "b_dtype"):
        if isinstance(getattr(spec, name), DType) and getattr(spec, name).bits == 8:
            rule = "operands are fp16, bf16 or fp32; fp8 is a type of inputs and outputs of the epilogue"
            raise field_error(SpecError, name, getattr(spec, name), rule, DType.BF16)
    fp32_in = DType.FP32 in (spec.a_dtype, spec.b_dtype)
    if fp32_in and spec.schedule not in (AUTO, "simt"):
        rule = "fp32 operands run on the CUDA cores"
        raise field_error(SpecError, "schedule", spec.schedule, rule, "simt")
    if not _is_auto(spec.a_dtype) and not _is_auto(spec.b_dtype) and spec.a_dtype != spec.b_dtype:
        raise field_error(SpecError, "b_dtype", spec.b_dtype, "A and B have one dtype", spec.a_dtype)
    if spec.schedule == "multistage" and spec.cluster not in (AUTO, (1, 1)):
        rule = 'multicast needs the producer warp of schedule="cooperative"'
        raise field_error(SpecError, "cluster", spec.cluster, rule, (1, 1))
    if spec.schedule == "multistage":
        for name in ("a_load", "b_load"):
            if getattr(spec, name) == "gather":
                rule = 'gathering needs the producer warpgroup of schedule="cooperative"'
                raise field_error(SpecError, name, "gather", rule, "relayout")
    if spec.schedule == "pingpong" and spec.consumers not in (AUTO, PINGPONG_CONSUMERS):
        rule = "two warpgroups take turns"
        raise field_error(SpecError, "consumers", spec.consumers, rule, PINGPONG_CONSUMERS)
    if spec.schedule == "pingpong" and spec.scheduler == "per_tile":
        rule = "warpgroups that take turns need more than one tile each"
        raise field_error(SpecError, "scheduler", spec.scheduler, rule, "persistent")
    if spec.schedule == "simt":
        _check_simt(spec)


def _check_simt(spec: GemmSpec) -> None:
    """Fields of the tensor-core kernels have no meaning on the CUDA cores."""
    for name in TENSOR_CORE_FIELDS:
        if not _is_auto(getattr(spec, name)):
            rule = 'has no meaning for schedule="simt"'
            raise field_error(SpecError, name, getattr(spec, name), rule, AUTO)
