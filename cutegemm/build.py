# SPDX-License-Identifier: Apache-2.0
"""`build(spec)` -> `Gemm`: a family of kernels under one spec, and the run path."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cutegemm import arguments, cache, fused, loader, resources, tensors
from cutegemm.compile import Artifact, record_launches
from cutegemm.dtypes import DType
from cutegemm.epilogue.graph import linear_combination
from cutegemm.errors import InputError, field_error
from cutegemm.plan import KernelPlan, plan
from cutegemm.problem import Problem
from cutegemm.problem import problem as make_problem
from cutegemm.spec import AUTO, GemmSpec


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

    Attributes:
        spec: the declaration.
        plan: of the representative problem (the one given to `build`, or 4096^3, aligned, no C).
    """

    def __init__(self, spec: GemmSpec, representative: Problem) -> None:
        self.spec = spec
        self._plain = spec.epilogue == AUTO
        self._prepared: dict[tuple, Callable] = {}
        self._lock = threading.Lock()
        self.plan = plan(spec, representative)

    def kernel(self, of: Problem | None = None) -> Kernel:
        """The kernel that serves a problem (default: the representative), compiled if need be.

        Raises:
            PlanError: the spec cannot serve the problem.
            CompileError: the kernel does not compile.
        """
        chosen = self.plan if of is None else plan(self.spec, of)
        return Kernel(chosen, cache.artifact(chosen.config) if chosen.steps else None)

    @property
    def ptx(self) -> str:
        """PTX of the representative kernel."""
        return self.kernel().ptx

    @property
    def sass(self) -> str:
        """Machine code of the representative kernel; needs nvdisasm."""
        return self.kernel().sass

    @property
    def resources(self) -> resources.Resources:
        """Resources of the representative kernel."""
        return self.kernel().resources

    def workspace_bytes(self, of: Problem) -> int:
        """Device memory that `run` needs for a problem beside its operands, in bytes."""
        return plan(self.spec, of).workspace_bytes

    def warm(self, problems: Iterable[Problem]) -> None:
        """Make every kernel the problems need ready, so that running them compiles and loads nothing.

        Missing kernels compile in parallel subprocesses. On a machine with a Hopper GPU they are also loaded on
        the current device, after which their calls may be captured in a CUDA graph.

        Raises:
            PlanError: the spec cannot serve a problem.
            CompileError: a kernel does not compile.
        """
        from cutegemm.run import current_device, function_for  # imports torch

        index, device = current_device()
        plans = [plan(self.spec, p, device) for p in problems]
        configs = list(dict.fromkeys(step.config for p in plans for step in p.steps))
        cache.ensure(configs)
        if index is not None:
            for config in configs:
                function_for(config, index)

    def launches(self, of: Problem, addresses: Mapping[str, int] | None = None, workspace: int = 1 << 40,
                 **numbers: float) -> list[loader.Launch]:  # fmt: skip
        """Run the real host code of a run with CUDA replaced: every launch with its parameters, on any machine.

        Args:
            of: the problem.
            addresses: of a, b, the epilogue's tensors, its outputs and its device scalars, by name; those
                not given are made up, 1 MiB apart.
            workspace: address of the workspace.
            numbers: alpha, beta or whatever numbers the epilogue takes; those not given are 1.
        """
        chosen = plan(self.spec, of)
        if not chosen.steps:
            return []
        graph = chosen.config.epilogue
        names = ("a", "b", *graph.tensors, *(x.name for x in graph.outputs), *of.device_scalars)
        places = {name: (i + 1) << 20 for i, name in enumerate(names)} | dict(addresses or {})
        values = dict.fromkeys(graph.numbers, 1) | numbers
        found = []
        for config, args in arguments.launch_arguments(chosen, places, workspace, values, 0):
            artifact = cache.artifact(config)
            found += record_launches(artifact.obj, artifact.ptx, args)
        return found

    def explain(self, of: Problem | None = None) -> str:
        """What runs for a problem (default: the representative), and why: launches, tile, epilogue with the bytes
        that its inputs and outputs cost, registers, stages, shared memory."""
        kernel = self.kernel(of)
        lines = [str(kernel.plan)]
        if kernel.artifact is not None:
            lines.append(f"compiled   {kernel.resources}")
        return "\n".join(lines)

    def run(self, a: Any, b: Any, c: Any = None, *, out: Any = None, alpha: float = 1.0, beta: float | None = None,
            backend: str | None = None, workspace: Any = None, **named: Any) -> Any:  # fmt: skip
        """D = alpha * a @ b + beta * c, or the spec's epilogue, on the current stream, without synchronising.

        Args:
            a: (M, K) or (L, M, K); b: (K, N) or (L, K, N); any strides. A 2-D operand serves every batch.
            c: None or (M, N), (L, M, N); not read when beta is 0. Only for the plain epilogue, or one with a c.
            out: where D goes; may be c itself. None allocates a row-major tensor. With several outputs a
                mapping from their names to tensors; those not in it are allocated.
            alpha, beta: scalars of the plain epilogue; beta None means 1 with c and 0 without.
            backend: None (the GPU for CUDA tensors, "reference" for CPU tensors), "gpu", "reference" (torch) or
                "emulator" (the compiled kernel, executed on the CPU; for small problems).
            workspace: a CUDA uint8 tensor of at least `workspace_bytes`; None takes it from torch's allocator.
            named: what the spec's epilogue reads: rows (N,) or (L, N), columns (M,) or (L, M), matrices (M, N) or
                (L, M, N), scalars as numbers or 0-d fp32 tensors, integers as numbers.

        Returns:
            D: `out`, or a new tensor (M, N) or (L, M, N). With other outputs than d alone, an object with an
            attribute per output (`results.Outputs`).

        Raises:
            InputError: a tensor or scalar breaks a rule; nothing has been written.
            PlanError: the spec cannot serve these operands.
            HardwareError: the tensors' device is not a Hopper GPU.
        """
        if not self._plain:
            named |= fused.blas_names(self.spec.epilogue, c, alpha, beta)
            return self._run_fused(a, b, named, out, backend, workspace)
        if named:
            name = next(iter(named))
            raise field_error(InputError, name, "...", "the plain epilogue reads c, alpha and beta")
        try:
            # What distinguishes one kind of call from another: layouts, types, devices; of addresses only the
            # alignment. Calls that want gradients are never kept, so they are refused each time.
            pa, pb, pd = a.data_ptr(), b.data_ptr(), 0 if out is None else out.data_ptr()
            pc = 0 if c is None else c.data_ptr()
            key = (
                a.shape, a.stride(), a.dtype, a.get_device(), a.requires_grad and _recording(),
                b.shape, b.stride(), b.dtype, b.get_device(), b.requires_grad and _recording(),
                None if c is None else _identity(c), None if out is None else _identity(out),
                pa & 15 | (pb & 15) << 4 | (pc & 15) << 8 | (pd & 15) << 12,
                backend, beta == 0,
            )  # fmt: skip
            numbers = (float(alpha), 1.0 if beta is None else float(beta))
        except (AttributeError, RuntimeError, TypeError, ValueError):
            # What is no tensor, has no storage or is no number: validation says which.
            pa = pb = pc = pd = 0
            key = None
        prepared = self._prepared.get(key)
        if prepared is None:
            fused.check_scalars(alpha, beta)
            prepared = self._prepare_plain(key, (a, b, c, out), beta, backend)
        if c is None or beta == 0:
            return prepared((a, b, out), (pa, pb, pd), numbers[:1], workspace)
        return prepared((a, b, c, out), (pa, pb, pc, pd), numbers, workspace)

    def _prepare_plain(
        self, key: tuple | None, given: tuple, beta: float | None, backend: str | None
    ) -> Callable:
        """Validate a plain call of a new kind and keep what every call of that kind needs."""
        from cutegemm.run import Request, prepare  # imports torch

        a, b, c, out = given
        if beta is not None and beta != 0 and c is None:
            raise field_error(InputError, "beta", beta, "needs c", 0.0)
        outs = {} if out is None else {"d": out}
        request = Request(a, b, {} if c is None else {"c": c}, outs)
        graph = linear_combination(c is not None)
        if c is not None and beta == 0:
            tensors.validate(a, b, graph, request.inputs, outs, None)  # C is not read, but must be legal
            request, graph = Request(a, b, {}, outs), linear_combination(False)
        prepared = prepare(self.spec, graph, request, backend)
        return self._keep(key, prepared, given)

    def _keep(self, key: tuple | None, prepared: Callable, given: tuple) -> Callable:
        if key is not None and not any(t is not None and t.requires_grad and _recording() for t in given):
            with self._lock:
                self._prepared[key] = prepared
        return prepared

    def _run_fused(self, a: Any, b: Any, named: dict, out: Any, backend: str | None, workspace: Any) -> Any:
        """A run of the spec's epilogue."""
        graph = self.spec.epilogue
        outs = fused.outputs_given(graph, out)
        inputs, numbers = fused.split_inputs(graph, named)
        scalars = tuple(x for x in graph.numbers if x in inputs)
        read, rest = fused.order(graph, scalars)
        named = {"a": a, "b": b, **inputs}
        given = (*(named[x] for x in read), *(named[x] if x in scalars else outs.get(x) for x in rest))
        try:
            places = tuple(0 if t is None else t.data_ptr() for t in given)
            key = (
                *(None if t is None else _identity(t) for t in given),
                sum((p & 15) << 4 * i for i, p in enumerate(places)), scalars, backend,
            )  # fmt: skip
        except (AttributeError, RuntimeError):
            places, key = (0,) * len(given), None
        prepared = self._prepared.get(key)
        if prepared is None:
            from cutegemm.run import Request, prepare  # imports torch

            prepared = self._keep(key, prepare(self.spec, graph, Request(a, b, inputs, outs), backend), given)
        return prepared(given, places, numbers or arguments.NO_NUMBERS, workspace)

    def __str__(self) -> str:
        return f"{self.spec!r}\n{self.explain()}"


def _identity(tensor: Any) -> tuple:
    """What tells one kind of tensor from another, beside its address."""
    wants_gradient = tensor.requires_grad and _recording()
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device(), wants_gradient


def _recording() -> bool:
    """Whether autograd records operations now."""
    import torch

    return torch.is_grad_enabled()


def build(spec: GemmSpec, problem: Problem | None = None) -> Gemm:
    """Declare and compile: a `Gemm` for `spec`, with `problem`'s kernel (or the representative one) compiled.

    Args:
        spec: what to build.
        problem: the representative problem; None is 4096^3, 16-byte aligned, no C, in the spec's types and majors.

    Raises:
        PlanError: the spec cannot serve the problem.
        CompileError: the kernel does not compile.
    """
    gemm = Gemm(spec, problem if problem is not None else representative(spec))
    gemm.kernel()
    return gemm


def representative(spec: GemmSpec) -> Problem:
    """The problem a bare spec is planned for: 4096^3, aligned, bf16 and row-major where the spec leaves it open."""
    ab = next((x for x in (spec.a_dtype, spec.b_dtype) if x != AUTO), DType.BF16)
    majors = ("k" if spec.a_major == AUTO else spec.a_major) + ("n" if spec.b_major == AUTO else spec.b_major)
    return make_problem(
        4096, 4096, 4096, dtype=ab, d_dtype=None if spec.d_dtype == AUTO else spec.d_dtype, majors=majors,
        d_major="n" if spec.d_major == AUTO else spec.d_major,
        epilogue=None if spec.epilogue == AUTO else spec.epilogue,
        input_dtype=None if spec.c_dtype == AUTO else spec.c_dtype,
    )  # fmt: skip


__all__ = ["Gemm", "Kernel", "build", "representative"]
