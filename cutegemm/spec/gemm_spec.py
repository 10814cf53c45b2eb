# SPDX-License-Identifier: Apache-2.0
"""`GemmSpec`: the declaration of a kernel. Pure Python; needs no GPU, tensors or torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cutegemm import checks
from cutegemm.arch.instructions import EXACT
from cutegemm.dtypes import as_dtype
from cutegemm.epilogue import scales, scaling
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import SpecError, field_error
from cutegemm.spec import rules, values
from cutegemm.spec.values import AUTO, Auto, Tile, is_auto


@dataclass(frozen=True, kw_only=True)
class GemmSpec(checks.Named):
    """A GEMM kernel, declared. Every field defaults to "auto": the planner chooses.

    A specified field is honoured exactly or refused with an error. It is never silently changed. An "auto" field never
    makes a spec illegal: a spec is refused only if its specified fields contradict one another or the problem.
    Integers may be of any integer type and tuples may be lists. The spec stores Python ints and tuples.

    Attributes:
        a_dtype, b_dtype: "fp16", "bf16", "fp32", "fp8_e4m3", "fp8_e5m2", "int8" or "uint8" (names, `DType` or torch
            dtypes): A and B have one type, both an fp8 type or both an 8-bit integer type.
        c_dtype, d_dtype: C has any of these types but integers. D has any, or "int32" with int8 and uint8 operands.
        acc_dtype: accumulator type: "fp32", or "int32" with int8 and uint8 operands.
        a_major: "k" (A[m, k] with unit stride along k) or "m".
        b_major: "n" (B[k, n] with unit stride along n) or "k".
        c_major, d_major: "n" (row-major) or "m" (column-major).
        tile: `Tile(m, n, k)`, elements; on CUDA cores one of `config.simt.TILES`, for few rows or
            columns of D also of `config.gemv.TILES`.
        cluster: (m, n) CTAs that share operands by TMA multicast. With (m, n, k), k CTAs of the cluster also split K
            and reduce their splits over distributed shared memory.
        stages: of the mainloop's shared-memory pipeline. CUDA-core kernels that load through registers have 2.
        swizzle: "128B", "64B", "32B" or "none": the shared-memory layout of A and B.
        schedule: "cooperative" (a producer warpgroup feeds consumers that share a tile), "pingpong" (it feeds two
            consumers with a tile each, so that one's epilogue overlaps the other's mainloop), "multistage" (no warp
            specialization: every warpgroup computes, one thread loads) or "simt" (CUDA cores).
        consumers: warpgroups that compute, 1 to 3.
        a_load, b_load: "tma", or "relayout" (a kernel first copies the operand into TMA-addressable workspace). The
            producer's threads can also load: "cp_async" (copies of 4, 8 or 16 bytes; base address and leading
            dimension must be multiples of that), "shift" (unaligned rows of unit stride: aligned words are loaded
            and funnel-shifted) or "gather" (single elements, any strides).
        store: "tma" (through shared memory), "staged" (through shared memory, coalesced stores, any
            strides) or "direct" (from registers, any strides).
        epilogue_stages: shared-memory buffers of each output's store, per consumer warpgroup.
        input_stages: subtiles of the epilogue's matrix inputs that are prefetched into shared memory during the
            mainloop, per consumer warpgroup.
        scheduler: "persistent" (one CTA per SM computes many tiles), "per_tile" (one CTA per tile), "stream_k" (one CTA
            per SM; the last tiles are split along K so that all CTAs end together; cooperative only) or "dynamic"
            (one CTA per SM takes tiles from a global counter; for GPUs that other kernels use at the same time). "auto"
            is "persistent", or "dynamic" for CTAs without a cluster that compute many tiles of matrices larger than L2,
            and for groups along K.
        raster: ("m" | "n", group): tiles are rasterized in panels that are `group` clusters wide along that axis.
        sms: use at most this many SMs.
        swap: compute D^T = B^T A^T, for D of few rows. D's columns then map to the 64 rows of wgmma and D's rows to its
            columns, in steps of 8. All fields stay in D's coordinates: tile.m is a multiple of 8 up to 256 and
            tile.n a multiple of 64.
        split_k: number of splits along K, for few tiles and a deep K; 1 does not split. It must be a multiple of the
            cluster's extent along K, and 1, 2, 4 or 8 on the CUDA cores. The epilogue runs once, after the reduction.
        split_reduction: how splits are reduced. Three ways give the same bits on every run: "cluster" (over the
            distributed shared memory of a cluster whose third extent is `split_k`; one launch, no workspace),
            "workspace" (by the last CTA that arrives) and "launch" (by a second kernel on all SMs). "atomic" adds
            splits in the order in which they arrive, so that the last bits differ between runs; the planner never
            chooses it. A cluster reduces the splits of its own CTAs first. Where it holds all splits, "workspace" and
            "atomic" equal "cluster", and "launch" needs at least two clusters.
        ctas_per_sm: CTAs per SM, 1 or 2. With 2, one CTA's prologue and epilogue overlap the other's mainloop.
        trigger: when the next kernel on the stream may start its prologue (programmatic dependent launch): "never"
            (only after this kernel ends), at this kernel's "start", after the last of its "loads", or at the end of its
            "mainloop" (a kernel without a producer warp has one point for both). In every case a kernel waits for all
            earlier ones to end before it touches memory, except operands named in `constant`.
        constant: operands, ("a",), ("b",) or both, such as weights, that no kernel writes which may still run when this
            one starts. Kernels that can, load their first tiles while the previous kernel still runs; others ignore it.
        evict_first: the matrices among "a", "b" and "d" (all outputs) that TMA moves with L2's evict-first hint. By
            default an operand that only one row or column of tiles reads: B if it exceeds a quarter of L2, A if half.
            A spec that gives it excludes kernels of the CUDA cores, where the planner alone decides.
        batch_invariant: whether a row of D must have the same bits for every M and at every row index, on one GPU
            model. The order of additions along K then depends on N and K alone: K is split only if `split_k` says so,
            and all tiles are equally wide if the epilogue reduces along rows.
        promote: elements of K between promotions, which add partial sums to accumulators in fp32 registers. A multiple
            of the instruction's K and of tile.k; None never promotes. "auto" promotes if tensor cores keep few bits
            (fp8: 13 fraction bits) or truncate sums ("tf32x3"), so that a long sum's error stays near that of fp32.
            It does not promote fp8 sums of K up to 512 if all outputs are bf16 or fp8: for operands of both signs,
            D's error grows by up to 1.2 %. Integer sums are exact and are never promoted.
        math: "exact" (elements are multiplied as they are; fp32 runs on CUDA cores), "tf32" (fp32 operands on
            tensor cores: elements are rounded to 10 fraction bits, products are added in fp32) or "tf32x3"
            (each element is split into two tf32 parts; three GEMMs of parts give errors near fp32's). "auto" is
            "exact"; torch.backends.cuda.matmul.allow_tf32 is not consulted.
        scale_a, scale_b: scales of the operands, which a run takes as `scale_a` and `scale_b`: "tensor" (one number, or
            a tensor of one), "row" (M of A, N of B), ("block", 1, 128) or ("block", 128, 128), extents along the
            operand's free axis (M of A, N of B), then K. The tensor is (blocks of the free axis, blocks of K), fp32 or
            ue8m0, any strides. The epilogue reads scaled sums. "auto" is no scales.
        zero_point_a, zero_point_b: zero points of int8 and uint8 operands, which a run takes by these names: "tensor"
            (an integer or a 0-d tensor) or "row" (M of A, N of B). D is that of (A - zero_point_a)(B - zero_point_b),
            exact if the sums of A B fit int32. Block scales exclude zero points. A run may pass the sums along K in
            int32 that it needs: `sums_a`, (M,), of A for `zero_point_b`; `sums_b`, (N,), of B for `zero_point_a`.
            "auto" is no zero points.
        epilogue: an expression graph (`cutegemm.epilogue`); "auto" is alpha * A @ B + beta * C.

    Raises:
        SpecError: a field is illegal; names the field, value, rule and nearest legal value.

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
    batch_invariant: bool | Auto = AUTO
    promote: int | None | Auto = AUTO
    math: str = AUTO
    scale_a: scales.Kind = AUTO
    scale_b: scales.Kind = AUTO
    zero_point_a: str = AUTO
    zero_point_b: str = AUTO
    epilogue: Graph | Auto = AUTO

    def __post_init__(self) -> None:
        for name in ("a_dtype", "b_dtype", "c_dtype", "d_dtype", "acc_dtype"):
            if not is_auto(getattr(self, name)):
                object.__setattr__(self, name, as_dtype(getattr(self, name), name))
        for name, value in (*values.choices(self), *values.numbers(self), *values.tuples(self)):
            object.__setattr__(self, name, value)
        if not is_auto(self.epilogue) and not isinstance(self.epilogue, Graph):
            hint = (
                " (call it, or decorate your own function with epi.define)" if callable(self.epilogue) else ""
            )
            raise field_error(SpecError, "epilogue", self.epilogue, f"must be an epilogue graph{hint}")
        if isinstance(self.epilogue, Graph) and self.epilogue.gated_axis == "m":
            rule = "B's columns hold a gated pair, not A's rows; give the graph itself, not its transpose"
            raise field_error(SpecError, "epilogue", f"{self.epilogue}", rule)
        for name in ("swap", "batch_invariant"):
            if not is_auto(getattr(self, name)) and not isinstance(getattr(self, name), bool):
                raise field_error(SpecError, name, getattr(self, name), "must be True or False")
        if not is_auto(self.constant):
            names = tuple(self.constant) if isinstance(self.constant, (tuple, list)) else ()
            if not names or not all(checks.among(x, ("a", "b")) for x in names):
                rule = 'must be a tuple of "a" and "b"'
                raise field_error(SpecError, "constant", self.constant, rule, ("b",))
            object.__setattr__(self, "constant", tuple(sorted(set(names))))
        if not is_auto(self.evict_first):
            object.__setattr__(self, "evict_first", values.evicted(self.evict_first))
        if not is_auto(self.promote):
            object.__setattr__(self, "promote", values.promotion(self))
        kinds = {
            x: getattr(self, f"scale_{x}") for x in ("a", "b") if not is_auto(getattr(self, f"scale_{x}"))
        }
        if kinds:
            kinds = {x: scales.checked(f"scale_{x}", value) for x, value in kinds.items()}
            base = self.epilogue if isinstance(self.epilogue, Graph) else scaling.PLAIN
            object.__setattr__(self, "epilogue", scaling.scaled(base, kinds))
            for x, kind in kinds.items():
                object.__setattr__(self, f"scale_{x}", kind)
        if any(self.zero_points):
            base = self.epilogue if isinstance(self.epilogue, Graph) else scaling.PLAIN
            kinds = {x: kind for x, kind in zip("ab", self.zero_points) if kind}
            object.__setattr__(self, "epilogue", scaling.shifted(base, kinds))
        rules.check_tile(self)
        rules.check_together(self)

    @property
    def arithmetic(self) -> str:
        """The arithmetic of the instruction (`arch.instructions`)."""
        return EXACT if is_auto(self.math) else self.math

    @property
    def zero_points(self) -> tuple[str, str]:
        """The kinds of the zero points of A and B; "" for an operand without one."""
        a, b = ("" if is_auto(x) else x for x in (self.zero_point_a, self.zero_point_b))
        return a, b

    @property
    def constants(self) -> tuple[str, ...]:
        """The operands that are constant, of "a" and "b"; () if unspecified."""
        return self.constant if self.constant != AUTO else ()

    @property
    def plane(self) -> tuple[int, int] | None:
        """The specified CTAs of a cluster along (m, n); None if unspecified."""
        return None if isinstance(self.cluster, str) else (self.cluster[0], self.cluster[1])

    @property
    def depth(self) -> int | None:
        """The specified CTAs of a cluster along K; None if unspecified."""
        return self.cluster[2] if isinstance(self.cluster, tuple) and len(self.cluster) == 3 else None

    def given(self) -> dict[str, Any]:
        """The fields that are not "auto", in declaration order."""
        return {name: x for name, x in vars(self).items() if not (isinstance(x, str) and x == AUTO)}

    def to_data(self) -> dict[str, Any]:
        """The specified fields as JSON data, which `from_data` reads."""
        given = self.given().items()
        return {
            name: x.to_data()
            if isinstance(x, Graph)
            else checks.plain(tuple(x) if isinstance(x, Tile) else x)
            for name, x in given
        }

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> GemmSpec:
        """The spec from the data of `to_data`."""
        fields: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in data.items()}
        if "epilogue" in data:
            fields["epilogue"] = Graph.from_data(data["epilogue"])
        return GemmSpec(**fields)

    def __repr__(self) -> str:
        return f"GemmSpec({', '.join(f'{name}={value!r}' for name, value in self.given().items())})"

    def __str__(self) -> str:
        """The repr, with the epilogue's formula in place of its nodes."""
        shown = {name: f"{x!r}" for name, x in self.given().items()}
        if isinstance(self.epilogue, Graph):
            shown["epilogue"] = "<" + str(self.epilogue).replace("\n", "; ") + ">"
        return f"GemmSpec({', '.join(f'{name}={x}' for name, x in shown.items())})"


def checked_spec(value: object) -> GemmSpec:
    """Check that a caller's value is a `GemmSpec`, and return it.

    Raises:
        SpecError: it is something else.
    """
    if not isinstance(value, GemmSpec):
        hint = ": call it" if value is GemmSpec else ""
        raise field_error(SpecError, "spec", value, f"must be a GemmSpec{hint}", GemmSpec())
    return value
