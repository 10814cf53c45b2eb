# SPDX-License-Identifier: Apache-2.0
"""`build(spec)` -> `Gemm`: a family of kernels under one spec, and the run path."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from cutegemm import checks
from cutegemm.compiling import cache, loader, resources
from cutegemm.compiling.compiler import Artifact, record_launches
from cutegemm.database import Choice, choose
from cutegemm.epilogue.graph import Graph, linear_combination
from cutegemm.errors import GemmError, InputError, SpecError, field_error
from cutegemm.planning.arguments import launch_arguments
from cutegemm.planning.kernel_plan import KernelPlan
from cutegemm.planning.representative import representative
from cutegemm.problems import Problem, checked, listed
from cutegemm.running import here
from cutegemm.running.call import NOWHERE, Memo, Request, Unprepared, identity, recording, substance
from cutegemm.running.named import Signature, blas_names, blas_number, passed
from cutegemm.spec import GemmSpec
from cutegemm.tuning import tune

if TYPE_CHECKING:
    from torch import Tensor

    from cutegemm.running.kind import Prepared
    from cutegemm.tuning.report import Report

Backend = Literal["gpu", "reference", "emulator"]
MAX_ADDRESS = (1 << 63) - 1


@dataclass(frozen=True)
class Kernel:
    """One problem's kernel: its plan and the GEMM launch's compiled artifact (None when D is empty)."""

    plan: KernelPlan
    artifact: Artifact | None

    @property
    def ptx(self) -> str:
        """The GEMM kernel's PTX."""
        return self.artifact.ptx if self.artifact else ""

    @property
    def sass(self) -> str:
        """The GEMM kernel's machine code as text; needs nvdisasm."""
        return resources.sass(self.artifact.cubin) if self.artifact else ""

    @property
    def resources(self) -> resources.Resources | None:
        """Registers, spills, shared memory, code size, instructions."""
        return self.artifact.resources if self.artifact else None


class Gemm:
    """Kernels built under one `GemmSpec`, compiled on first need and kept.

    `build(spec)` compiles the representative kernel at once; `Gemm(spec)` compiles nothing yet.

    Attributes:
        spec: the declaration.
        plan: of the representative problem (the one given to `build`, or 4096^3, aligned, no C).
    """

    def __init__(self, spec: GemmSpec, of: Problem | None = None) -> None:
        self.spec = _checked_spec(spec)
        self._representative = representative(spec) if of is None else checked("of", of)
        self._fused = Signature(spec.epilogue) if isinstance(spec.epilogue, Graph) else None
        self._kinds: Memo[Prepared] = Memo()
        self.plan = self._choice(self._representative).plan
        _leave_to_eager()

    def kernel(self, of: Problem | None = None) -> Kernel:
        """The kernel that serves a problem (default: the representative), compiled if need be.

        Raises:
            PlanError: the spec cannot serve the problem.
            CompileError: the kernel does not compile.
        """
        chosen = self.plan if of is None else self._plan(of)
        return Kernel(chosen, None if chosen.config is None else cache.artifact(chosen.config))

    def _plan(self, of: Problem) -> KernelPlan:
        return self._choice(checked("of", of)).plan

    def _choice(self, of: Problem) -> Choice:
        """What a run of a problem would take on the current device."""
        return choose(self.spec, of, here.device())

    @property
    def ptx(self) -> str:
        """PTX of the representative kernel."""
        return self.kernel().ptx

    @property
    def sass(self) -> str:
        """Machine code of the representative kernel; needs nvdisasm."""
        return self.kernel().sass

    @property
    def resources(self) -> resources.Resources | None:
        """Resources of the representative kernel; None when its D is empty."""
        return self.kernel().resources

    def workspace_bytes(self, of: Problem) -> int:
        """Device memory that `run` needs for a problem beside its operands, in bytes."""
        return self._plan(of).workspace_bytes

    def warm(self, problems: Iterable[Problem]) -> None:
        """Make every kernel the problems need ready, so that running them compiles and loads nothing.

        Missing kernels compile in parallel subprocesses. On a machine with a Hopper GPU they are also loaded on
        the current device, after which their calls may be captured in a CUDA graph.

        Raises:
            InputError: `problems` is no iterable of problems.
            PlanError: the spec cannot serve a problem.
            CompileError: a kernel does not compile.
        """
        wanted = listed("problems", problems)
        # imports torch
        from cutegemm.running.launcher import current_device, function_for

        index, device = current_device()
        plans = [choose(self.spec, p, device).plan for p in wanted]
        configs = list(dict.fromkeys(step.config for p in plans for step in p.steps))
        cache.ensure(configs)
        if index is not None:
            for config in configs:
                function_for(config, index)

    def tune(self, problems: Iterable[Problem] | None = None, **options: Any) -> Report:
        """`cutegemm.tune` of this spec, for problems or the representative one; later runs take what it found.

        Args:
            problems: None is the representative problem.
            options: of `cutegemm.tune`.

        Raises:
            InputError, HardwareError: as `cutegemm.tune` does.
        """
        report = tune(self.spec, [self._representative] if problems is None else problems, **options)
        self._kinds = Memo()
        self.plan = self._choice(self._representative).plan
        return report

    def launches(
        self,
        of: Problem,
        addresses: Mapping[str, int] | None = None,
        workspace: int = 1 << 40,
        **numbers: float,
    ) -> list[loader.Launch]:
        """Run the real host code of a run with CUDA replaced: every launch with its parameters, on any machine.

        Args:
            of: the problem.
            addresses: of a, b, the epilogue's tensors, its outputs and its device scalars, by name; those
                not given are made up, 1 MiB apart.
            workspace: address of the workspace.
            numbers: alpha, beta or whatever numbers the epilogue takes; those not given are 1.

        Raises:
            InputError: an argument is of another kind, or names nothing that the launch takes.
            PlanError, CompileError: see `kernel`.
        """
        chosen = self._plan(of)
        if chosen.config is None:
            return []
        graph = chosen.config.epilogue
        names = ("a", "b", *graph.tensors, *(x.name for x in graph.outputs), *of.device_scalars)
        places = {name: (i + 1) << 20 for i, name in enumerate(names)}
        places |= _checked_addresses(names, addresses)
        workspace = checks.integer(InputError, "workspace", workspace, 0, MAX_ADDRESS)
        values: dict[str, float] = dict.fromkeys(graph.numbers, 1)
        for name, value in numbers.items():
            if name not in values:
                rule = f"the epilogue's numbers are {', '.join(values) or 'none'}"
                raise field_error(InputError, name, value, rule)
            values[name] = passed(graph.numbers[name], name, value)
        found = []
        for config, args in launch_arguments(chosen, places, workspace, values, 0):
            artifact = cache.artifact(config)
            found += record_launches(artifact.obj, artifact.ptx, args)
        return found

    def explain(self, of: Problem | None = None, *, why: bool = False) -> str:
        """What runs for a problem (default: the representative), and why: launches, tile, epilogue with the bytes
        that its inputs and outputs cost, registers, stages, shared memory, and what chose it.

        Args:
            of: the problem.
            why: whether to list every candidate with its predicted time and the reason it lost (`KernelPlan.why`).
        """
        kernel = self.kernel(of)
        entry = self._choice(self._representative if of is None else of).entry
        lines = [str(kernel.plan)]
        config = kernel.plan.config
        if kernel.artifact is not None and config is not None:
            if entry is not None and entry.expired(config, kernel.ptx):
                lines.append("expired    what was measured was another kernel: tune again")
            lines.append(f"compiled   {kernel.resources}")
        if why:
            lines.append(str(kernel.plan.why))
        return "\n".join(lines)

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
    ) -> Tensor: ...

    @overload
    def run(
        self, a: Any, b: Any, c: Any = None, *, out: Any = None, alpha: Any = 1.0, beta: Any = None,
        backend: Backend | None = None, workspace: Any = None, **named: Any,
    ) -> Any: ...  # fmt: skip

    def run(
        self,
        a: Any,
        b: Any,
        c: Any = None,
        *,
        out: Any = None,
        alpha: Any = 1.0,
        beta: Any = None,
        backend: Any = None,
        workspace: Any = None,
        **named: Any,
    ) -> Any:
        """D = alpha * a @ b + beta * c, or the spec's epilogue, on the current stream, without synchronising.

        Args:
            a: (M, K) or (L, M, K); b: (K, N) or (L, K, N); any strides. A 2-D operand serves every batch.
            c: None or (M, N), (L, M, N); not read when beta is 0. Only for the plain epilogue, or one with a c.
            out: where D goes; may be c itself. None allocates a row-major tensor. With several outputs a
                mapping from their names to tensors; those not in it are allocated.
            alpha, beta: scalars of the plain epilogue; beta None means 1 with c and 0 without.
            backend: None (the GPU for CUDA tensors, "reference" for CPU tensors), "gpu", "reference" (torch) or
                "emulator" (the compiled kernel, executed on the CPU; for small problems).
            workspace: a contiguous tensor of at least `workspace_bytes`, 16-byte aligned, on A's device; None
                takes it from torch's allocator.
            named: what the spec's epilogue reads: rows (N,) or (L, N), columns (M,) or (L, M), matrices (M, N) or
                (L, M, N), scalars as numbers or 0-d fp32 tensors, integers as numbers.

        Tensors may be arrays of another library, such as NumPy, CuPy or JAX: anything with `__dlpack__`. Their memory
        is read and written in place; JAX's arrays, which never change, cannot be outputs.

        Returns:
            D: `out`, or a new tensor (M, N) or (L, M, N). With other outputs than d alone, an object with an
            attribute per output (`results.Outputs`). Of meta and fake tensors only shapes, types and strides; of arrays
            of another library arrays of A's library.

        Raises:
            InputError: a tensor or scalar breaks a rule; nothing has been written.
            PlanError: the spec cannot serve these operands.
            HardwareError: the tensors' device is not a Hopper GPU.
            CheckError: under CUTEGEMM_CHECK=1, a result is outside the bounds of its epilogue.
        """
        if self._fused is not None:
            fused = self._fused
            if (
                c is not None
                or beta is not None
                or fused.reads_alpha
                or type(alpha) is not float
                or alpha != 1.0
            ):
                named |= blas_names(fused.graph, c, alpha, beta)
            return self._run_fused(fused, a, b, named, out, backend, workspace)
        # a type test is cheaper than the check of everything that may be a number
        if type(alpha) is not float:
            alpha = blas_number("alpha", alpha)
        if type(beta) is not float and beta is not None:
            beta = blas_number("beta", beta)
        if named or (c is None and beta):
            raise _plain_error(named, beta)
        try:
            # On the path of every call, so nothing is looked up twice. What distinguishes one kind of call from
            # another: layouts, types, devices; of addresses only the alignment. `identity` of each, written out: a
            # call more for each tensor is seen in the time of the whole.
            if type(a).__name__ == _FAKE:
                # it has no memory, and warns when it is asked for it
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
            run = _foreign(a, b, c, out)
            if run is not None:
                options = {"alpha": alpha, "beta": beta, "backend": backend, "workspace": workspace}
                return run(self.run, a, b, {} if c is None else {"c": c}, out, options)
            # what is no tensor, has no memory or cannot be a key: validation says which
            key, prepared, pa, pb, pc, pd = None, None, 0, 0, 0, 0
        if c is None or beta == 0.0:
            if prepared is not None:
                return prepared((a, b, out), (pa, pb, pd), (alpha,), workspace)
            request = Unprepared(_PLAIN, (a, b, out), (pa, pb, pd), (alpha,), key, unread=c)
        else:
            numbers = (alpha, 1.0 if beta is None else beta)
            if prepared is not None:
                return prepared((a, b, c, out), (pa, pb, pc, pd), numbers, workspace)
            request = Unprepared(_PLAIN_WITH_C, (a, b, c, out), (pa, pb, pc, pd), numbers, key)
        return self._first(request, backend, workspace)

    # torch.compile breaks its graph here: kernels are launched through TVM-FFI, which it cannot trace.
    run._torchdynamo_disable = True  # type: ignore[attr-defined]
    run._torchdynamo_disable_msg = "cutegemm launches its kernels itself"  # type: ignore[attr-defined]

    def _run_fused(
        self,
        signature: Signature,
        a: Any,
        b: Any,
        named: Mapping[str, Any],
        out: Any,
        backend: Any,
        workspace: Any,
    ) -> Any:
        """A run of the spec's epilogue."""
        given, numbers, scalars = signature.bind(a, b, named, out)
        places: tuple[int, ...]
        key: Any
        try:
            if type(a).__name__ == _FAKE:
                raise TypeError
            places = tuple([NOWHERE if t is None else t.data_ptr() for t in given])
            aligned = tuple([p & 15 for p in places])
            key = (*[None if t is None else identity(t) for t in given], aligned, scalars, backend)
            if 0 in places:
                key += substance(given)
            prepared = self._kinds.recent.get(key)
        except (AttributeError, RuntimeError, TypeError):
            run = _foreign(*given)
            if run is not None:
                return run(self.run, a, b, named, out, {"backend": backend, "workspace": workspace})
            places, key, prepared = (0,) * len(given), None, None
        if prepared is None:
            request = Unprepared(signature, given, places, numbers, key, scalars=scalars)
            return self._first(request, backend, workspace)
        return prepared(given, places, numbers, workspace)

    def _first(self, call: Unprepared, backend: Any, workspace: Any) -> Any:
        """A call of a kind that is not among the recent ones: validate, plan, remember, serve."""
        # imports torch
        from cutegemm.running import run as path

        _leave_to_eager()
        prepared = None if call.key is None else self._kinds.get(call.key)
        if prepared is None:
            order = call.signature.order(call.scalars)
            call = path.resolved(call) or call
            try:
                if call.unread is not None:
                    # C is not read when beta is 0, but must be legal
                    whole = Request(call.given[0], call.given[1], {"c": call.unread})
                    path.described(self.spec, _PLAIN_WITH_C.graph, whole)
                prepared = path.prepare(self.spec, call.signature.graph, order, call.given, backend)
            except GemmError as error:
                raise error.about(spec=self.spec, **path.circumstances(order, call.given)) from None
            if call.key is not None:
                self._kinds.put(call.key, prepared)
        return prepared(call.given, call.places, call.numbers, workspace)

    def __str__(self) -> str:
        return f"{self.spec!r}\n{self.explain()}"

    def __repr__(self) -> str:
        rest = "" if self._representative == representative(self.spec) else f", {self._representative!r}"
        return f"build({self.spec!r}{rest})"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or an unpickled one, is planned anew; kernels come from the cache when it first runs."""
        return Gemm, (self.spec, self._representative)


# the name of torch's class of tensors that are traced without memory
_FAKE = "FakeTensor"
_PLAIN, _PLAIN_WITH_C = Signature(linear_combination(False)), Signature(linear_combination(True))


def _foreign(*given: Any) -> Any:
    """What runs a call that passes arrays of another library; None if it passes none."""
    # imports torch
    from cutegemm.running import arrays

    return arrays.run if any(map(arrays.is_foreign, given)) else None


def _plain_error(named: Mapping[str, Any], beta: float | None) -> InputError:
    if named:
        return field_error(InputError, next(iter(named)), "...", "the plain epilogue reads c, alpha and beta")
    return field_error(InputError, "beta", beta, "needs c", 0.0)


def _leave_to_eager() -> None:
    """Tell torch.compile to leave `Gemm.run`, and all it calls, to Python.

    The mark on the function ends the graph before the call; this keeps the call itself from being traced.
    """
    try:
        frames = sys.modules["torch"]._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(Gemm.run.__code__, frames._FrameExecStrategy(skip, skip))
    except (KeyError, AttributeError):
        # torch is not imported, not yet whole, or has other names for these
        return


def _checked_spec(value: object) -> GemmSpec:
    """A spec that a caller gave.

    Raises:
        SpecError: it is none.
    """
    if not isinstance(value, GemmSpec):
        meant = value is None or value is GemmSpec or isinstance(value, dict) and not value
        raise field_error(SpecError, "spec", value, "must be a GemmSpec", GemmSpec() if meant else None)
    return value


def _checked_addresses(names: Sequence[str], value: object) -> dict[str, int]:
    """Addresses by name that a caller gave.

    Raises:
        InputError: they are no mapping from some of the names to addresses.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise field_error(InputError, "addresses", value, "must be a mapping from names to addresses")
    for name in value:
        if not checks.among(name, names):
            raise field_error(InputError, "addresses", name, f"must be of {', '.join(names)}")
    return {
        name: checks.integer(InputError, f"addresses.{name}", place, 0, MAX_ADDRESS)
        for name, place in value.items()
    }


def build(spec: GemmSpec, problem: Problem | None = None) -> Gemm:
    """Declare and compile: a `Gemm` for `spec`, with `problem`'s kernel (or the representative one) compiled.

    Args:
        spec: what to build.
        problem: the representative problem; None is 4096^3, 16-byte aligned, no C, in the spec's types and majors.

    Raises:
        SpecError: `spec` is no GemmSpec.
        InputError: `problem` is no Problem.
        PlanError: the spec cannot serve the problem.
        CompileError: the kernel does not compile.
    """
    gemm = Gemm(_checked_spec(spec), None if problem is None else checked("problem", problem))
    gemm.kernel()
    return gemm


__all__ = ["Gemm", "Kernel", "build", "representative"]
