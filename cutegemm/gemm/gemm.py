# SPDX-License-Identifier: Apache-2.0
"""`Gemm`: the kernels of a spec, and the run of a call; `build`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from cutegemm.checks import keywords
from cutegemm.compiling import kernel_cache
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import InputError, field_error, needing
from cutegemm.gemm import eager
from cutegemm.gemm.kernels import Kernels
from cutegemm.problems import Problem, checked
from cutegemm.running.arguments.blas import (
    PLAIN_WITH_C,
    blas_call,
    blas_names,
    blas_number,
    plain_call,
    refused,
)
from cutegemm.running.arguments.call import NOWHERE, REMEMBERED, Memo, identity, recording, substance
from cutegemm.running.arguments.named import Signature, Unprepared
from cutegemm.spec import AUTO, GemmSpec, checked_spec

if TYPE_CHECKING:
    from torch import Tensor

    from cutegemm.running.grouped_mm import GroupedGemm
    from cutegemm.running.groups import Groups
    from cutegemm.running.kind import Prepared

Backend = Literal["gpu", "reference", "emulator"]
# class name of torch's fake tensors, which are traced without memory
_FAKE = "FakeTensor"


class Runs:
    """The `run` of `Gemm` and of `Loaded` artefacts.

    Attributes:
        spec: the declaration.
    """

    spec: GemmSpec
    _fused: Signature | None
    _kinds: Memo[Prepared]

    @overload
    def run(
        self,
        a: Tensor,
        b: Tensor,
        c: Tensor | None = None,
        *,
        out: Tensor | None = None,
        alpha: float = 1.0,
        beta: float | None = None,
        backend: Backend | None = None,
        workspace: Tensor | None = None,
        groups: Groups | None = None,
    ) -> Tensor: ...

    @overload
    def run(
        self, a: Any, b: Any, c: Any = None, *, out: Any = None, alpha: Any = 1.0, beta: Any = None,
        backend: Backend | None = None, workspace: Any = None, groups: Any = None, **named: Any,
    ) -> Any: ...  # fmt: skip

    @eager.ends_graph
    def run(
        self, a: Any, b: Any, c: Any = None, *, out: Any = None, alpha: Any = 1.0, beta: Any = None,
        backend: Any = None, workspace: Any = None, groups: Any = None, **named: Any,
    ) -> Any:  # fmt: skip
        """D = alpha * a @ b + beta * c, or the spec's epilogue, on the current stream, without synchronising.

        Args:
            a: (M, K) or (L, M, K); b: (K, N) or (L, K, N); any strides. All batches share a 2-D operand.
            c: None or (M, N), (L, M, N); not read when beta is 0. Only for the plain epilogue, or one with a c.
            out: the tensor for D; may be c itself. None allocates a row-major tensor. With several outputs a
                mapping from their names to tensors; the others are allocated.
            alpha, beta: scalars of the plain epilogue; beta None means 1 with c and 0 without.
            backend: None (the GPU for CUDA tensors, "reference" for CPU tensors), "gpu", "reference" (torch) or
                "emulator" (the compiled kernel, executed on the CPU; for small problems).
            workspace: a contiguous tensor of at least `workspace_bytes`, 16-byte aligned, on A's device; None
                allocates it with torch.
            groups: `Groups`: one GEMM per group, in one launch without workspace. Groups of rows: a (M, K), b
                (G, K, N). Groups along K: a (M, K), b (K, N), D (G, M, N). Counts, which limit the rows of each
                batch: a (G, C, K), b (G, K, N). Rows of the epilogue may be (G, N), one per group; columns and
                matrices have D's rows. All tensors must be torch tensors.
            named: inputs of the spec's epilogue: rows (N,) or (L, N), columns (M,) or (L, M), matrices (M, N) or
                (L, M, N), scalars as numbers or 0-d fp32 tensors, integers as numbers.

        Tensors may also be arrays of another library with `__dlpack__`, such as NumPy, CuPy or JAX. Their memory is
        read and written in place. JAX arrays are immutable and cannot be outputs.

        Returns:
            D: `out`, or a new tensor (M, N) or (L, M, N). An epilogue with other outputs gives an object with an
            attribute per output (`results.Outputs`). Meta and fake tensors give tensors of their
            kind, without values. For arrays of another library the result is an array of A's library.

        Raises:
            InputError: a tensor or scalar breaks a rule; nothing has been written.
            PlanError: the spec does not support these operands.
            HardwareError: the tensors' device is not a Hopper GPU.
            CheckError: under CUTEGEMM_CHECK=1, a result is outside the bounds of its epilogue.
        """
        if groups is not None:
            return self._run_groups(groups, a, b, (c, alpha, beta), named, out, (backend, workspace))
        if self._fused is not None:
            return self._run_fused(self._fused, a, b, (c, alpha, beta), named, out, backend, workspace)
        # the type test is cheaper than the check of other number types
        if type(alpha) is not float:
            alpha = blas_number("alpha", alpha)
        if type(beta) is not float and beta is not None:
            beta = blas_number("beta", beta)
        if named or (c is None and beta):
            raise refused(named, beta)
        try:
            # This runs in every call, so nothing is looked up twice. The key has what distinguishes kinds of calls:
            # layouts, types, devices and, from the addresses, only the alignment. `identity` is inlined, because a
            # function call per tensor is measurable.
            if type(a).__name__ == _FAKE:
                # a fake tensor has no address, and warns if one is requested
                raise TypeError
            pa, pb = a.data_ptr(), b.data_ptr()
            pc, pd = NOWHERE if c is None else c.data_ptr(), NOWHERE if out is None else out.data_ptr()
            key: Any = (
                a.shape, a.stride(), a.dtype, a.get_device(), a.is_neg(), a.requires_grad and recording(),
                b.shape, b.stride(), b.dtype, b.get_device(), b.is_neg(), b.requires_grad and recording(),
                None if c is None else (
                    c.shape, c.stride(), c.dtype, c.get_device(), c.is_neg(), c.requires_grad and recording()
                ),
                None if out is None else (
                    out.shape, out.stride(), out.dtype, out.get_device(), out.is_neg(),
                    out.requires_grad and recording(),
                ),
                pa & 15 | (pb & 15) << 4 | (pc & 15) << 8 | (pd & 15) << 12,
                backend, beta == 0.0,
            )  # fmt: skip
            if not (pa and pb and pc and pd):
                key += substance((a, b, c, out))
            prepared = self._kinds.recent.get(key)
        except (AttributeError, RuntimeError, TypeError):
            # an argument is not a tensor, has no memory or cannot be hashed
            key = prepared = None
            pa = pb = pc = pd = 0
        if prepared is None:
            return self._run_new((a, b, c, out), (pa, pb, pc, pd), alpha, beta, key, backend, workspace)
        if c is None or beta == 0.0:
            return prepared((a, b, out), (pa, pb, pd), (alpha,), workspace)
        numbers = (alpha, 1.0 if beta is None else beta)
        return prepared((a, b, c, out), (pa, pb, pc, pd), numbers, workspace)

    def _run_new(
        self,
        given: tuple[Any, Any, Any, Any],
        addresses: tuple[int, int, int, int],
        alpha: float,
        beta: float | None,
        key: Any,
        backend: Any,
        workspace: Any,
    ) -> Any:
        """A run of the plain epilogue whose key is not cached, or that has no key."""
        if key is None:
            a, b, c, out = given
            run = _foreign(given)
            if run is not None:
                options = {"alpha": alpha, "beta": beta, "backend": backend, "workspace": workspace}
                return run(self.run, a, b, {} if c is None else {"c": c}, out, options)
        return self._first(plain_call(given, addresses, alpha, beta, key), backend, workspace)

    def _run_fused(
        self,
        signature: Signature,
        a: Any,
        b: Any,
        blas: tuple[Any, Any, Any],
        named: dict[str, Any],
        out: Any,
        backend: Any,
        workspace: Any,
    ) -> Any:
        """A run of the spec's epilogue; `blas` holds c, alpha and beta, which it may read by these names."""
        named = _read(signature, blas, named)
        if any(kinds := self.spec.zero_points):
            if (run := _foreign((a, b))) is not None:
                return run(self.run, a, b, named, out, {"backend": backend, "workspace": workspace})
            # imports torch
            from cutegemm.running.arguments import zero_points

            zero_points.check_operands(a, b)
            named = zero_points.read(kinds, a, b, named)
        given, numbers, scalars = signature.bind(a, b, named, out)
        addresses: tuple[int, ...]
        key: Any
        try:
            if type(a).__name__ == _FAKE:
                raise TypeError
            addresses = tuple([NOWHERE if t is None else t.data_ptr() for t in given])
            key = _fused_key(given, addresses, scalars, backend)
            if 0 in addresses:
                key += substance(given)
            prepared = self._kinds.recent.get(key)
        except (AttributeError, RuntimeError, TypeError):
            key = prepared = None
            addresses = (0,) * len(given)
        if prepared is not None:
            return prepared(given, addresses, numbers, workspace)
        if key is None:
            run = _foreign(given)
            if run is not None:
                return run(self.run, a, b, named, out, {"backend": backend, "workspace": workspace})
        call = Unprepared(signature, given, addresses, numbers, key, scalars=scalars)
        return self._first(call, backend, workspace)

    def _first(self, call: Unprepared, backend: Any, workspace: Any) -> Any:
        """A call of a kind that is not among the recent ones."""
        raise NotImplementedError

    def _run_groups(
        self, groups: Any, a: Any, b: Any, blas: Any, named: dict[str, Any], out: Any, how: tuple[Any, Any]
    ) -> Any:
        """A run of groups; `blas` holds c, alpha and beta, `how` backend and workspace.

        Raises:
            InputError: this is an artefact, which does not support groups.
        """
        rule = "an artefact holds GEMMs of fixed extents; build the spec, or use grouped_mm"
        raise InputError(rule, field="groups")


class Gemm(Runs, Kernels):
    """Kernels built under one `GemmSpec`, compiled on first need and kept.

    `build(spec)` compiles the kernel of the representative problem; `Gemm(spec)` compiles nothing yet.

    Attributes:
        spec: the declaration.
        plan: of the representative problem (the one given to `build`, or 4096^3, aligned, no C).
        shortcuts: of calls, by their callers' keys (`running.backends.shortcut`); attempts: how often each was tried.
    """

    @keywords(GemmSpec)
    def __init__(self, spec: GemmSpec, of: Problem | None = None) -> None:
        Kernels.__init__(self, spec, of)
        self._fused = Signature(spec.epilogue) if isinstance(spec.epilogue, Graph) else None
        eager.leave(Runs.run)

    def _choose_again(self) -> None:
        super()._choose_again()
        self._kinds: Memo[Prepared] = Memo()
        self._grouped: dict[bool, GroupedGemm] = {}
        # each is cached under its caller's key and under its kind
        self.shortcuts: Memo[Any] = Memo(2 * REMEMBERED)
        self.attempts: Memo[int] = Memo()

    def _first(self, call: Unprepared, backend: Any, workspace: Any) -> Any:
        """A call of a kind that is not among the recent ones."""
        with needing():
            # imports torch
            from cutegemm.running import run as path

        eager.leave(Runs.run)
        return path.first(self.spec, self._kinds, call, backend, workspace)

    def _run_groups(
        self, groups: Any, a: Any, b: Any, blas: Any, named: dict[str, Any], out: Any, how: tuple[Any, Any]
    ) -> Any:
        """A run of groups; `blas` holds c, alpha and beta, `how` backend and workspace."""
        for field, kind in zip(("zero_point_a", "zero_point_b"), self.spec.zero_points):
            if kind:
                raise field_error(InputError, field, kind, "groups have no zero points", AUTO)
        signature = self._fused
        if signature is None:
            signature, named = blas_call(blas, named)
        else:
            named = _read(signature, blas, named)
        reads_c = signature is PLAIN_WITH_C
        found = self._grouped.get(reads_c)
        if found is None:
            with needing():
                # imports torch
                from cutegemm.running.grouped_mm import GroupedGemm

            eager.leave(Runs.run)
            # the graph already contains the scales
            bare = dataclasses.replace(self.spec, epilogue=AUTO, scale_a=AUTO, scale_b=AUTO)
            found = GroupedGemm(bare, signature.graph)
            self._grouped[reads_c] = found
        return found.run(a, b, groups, named, out, *how)


def _read(signature: Signature, blas: tuple[Any, Any, Any], named: dict[str, Any]) -> dict[str, Any]:
    """An epilogue's named inputs, including c, alpha and beta if they are given or the epilogue reads them."""
    c, alpha, beta = blas
    plain = c is None and beta is None and type(alpha) is float and alpha == 1.0
    return (
        named if plain and not signature.reads_alpha else named | blas_names(signature.graph, c, alpha, beta)
    )


def recalled(gemm: Gemm, a: Any, b: Any, named: Mapping[str, Any], backend: Any) -> Prepared | None:
    """The cached run of these tensors without C, which allocates D; None if none is cached."""
    if gemm._fused is not None:
        given, _, scalars = gemm._fused.bind(a, b, named, None)
        addresses = tuple([NOWHERE if t is None else t.data_ptr() for t in given])
        return gemm._kinds.get(_fused_key(given, addresses, scalars, backend))
    aligned = a.data_ptr() & 15 | (b.data_ptr() & 15) << 4 | (NOWHERE & 15) << 8 | (NOWHERE & 15) << 12
    return gemm._kinds.get((*identity(a), *identity(b), None, None, aligned, backend, False))


def _fused_key(given: Any, addresses: tuple[int, ...], scalars: Any, backend: Any) -> tuple[Any, ...]:
    """The cache key of a call of the spec's epilogue."""
    aligned = tuple([p & 15 for p in addresses])
    return (*[None if t is None else identity(t) for t in given], aligned, scalars, backend)


def _foreign(given: tuple[Any, ...]) -> Any:
    """The function that runs a call with arrays of another library; None if all arrays are torch's."""
    with needing():
        # imports torch
        from cutegemm.running.arguments import arrays

    return arrays.run if any(map(arrays.is_foreign, given)) else None


@keywords(GemmSpec)
def build(spec: GemmSpec, problem: Problem | None = None) -> Gemm:
    """Make a `Gemm` for `spec` and compile the kernel of `problem`.

    Args:
        spec: what to build.
        problem: the representative problem; None is 4096^3, 16-byte aligned, no C, in the spec's types and majors.

    Raises:
        SpecError: `spec` is not a GemmSpec.
        InputError: `problem` is not a Problem.
        PlanError: the spec does not support the problem.
        CompileError: the kernel does not compile.
    """
    gemm = Gemm(checked_spec(spec), None if problem is None else checked("problem", problem))
    gemm.kernel()
    return gemm


@keywords(GemmSpec)
def build_many(
    specs: Sequence[GemmSpec | tuple[GemmSpec, Problem | None]],
) -> list[Gemm]:
    """`build` for a list of specs, for example when a service starts. Six or more compile in parallel.

    Args:
        specs: each a GemmSpec, or a pair of a GemmSpec and the problem that it is built for.

    Returns:
        One Gemm per entry, in order.

    Raises:
        InputError: an entry is something else.
        PlanError: a spec does not support its problem.
        CompileError: a kernel does not compile.
    """
    rule = "must be a list of specs, or of pairs of spec and problem"
    if not isinstance(specs, (list, tuple)):
        raise field_error(InputError, "specs", specs, rule, [GemmSpec()])
    gemms = []
    for i, entry in enumerate(specs):
        spec, of = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, None)
        if not isinstance(spec, GemmSpec):
            raise field_error(InputError, f"specs[{i}]", entry, rule, GemmSpec())
        gemms.append(Gemm(spec, None if of is None else checked(f"specs[{i}]", of)))
    kernel_cache.ensure([step.config for x in gemms for step in x.plan.steps])
    return gemms


__all__ = ["Gemm", "build", "build_many", "recalled"]
