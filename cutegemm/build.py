# SPDX-License-Identifier: Apache-2.0
"""`build(spec)` -> `Gemm`: a family of kernels under one spec, and the run path."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cutegemm import arguments, cache, loader, resources
from cutegemm.compile import Artifact, record_launches
from cutegemm.dtypes import DType
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
        self._representative = representative
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

    def launches(self, of: Problem, addresses: tuple[int, int, int, int] = (1 << 20, 2 << 20, 3 << 20, 4 << 20),
                 alpha: float = 1.0, beta: float = 1.0, workspace: int = 5 << 20) -> list[loader.Launch]:  # fmt: skip
        """Run the real host code of a run with CUDA replaced: every launch with its parameters, on any machine.

        Args:
            of: the problem.
            addresses: of a, b, c and d.
            workspace: address of the workspace.
        """
        found = []
        for config, args in arguments.launch_arguments(
            plan(self.spec, of), addresses, workspace, (alpha, beta), 0
        ):
            artifact = cache.artifact(config)
            found += record_launches(artifact.obj, artifact.ptx, args)
        return found

    def run(self, a: Any, b: Any, c: Any = None, *, out: Any = None, alpha: float = 1.0, beta: float | None = None,
            backend: str | None = None, workspace: Any = None) -> Any:  # fmt: skip
        """D = alpha * a @ b + beta * c (or the spec's epilogue), on the current stream, without synchronising.

        Args:
            a: (M, K) or (L, M, K); b: (K, N) or (L, K, N); any strides. A 2-D operand serves every batch.
            c: None or (M, N), (L, M, N); not read when beta is 0.
            out: where D goes; may be c itself. None allocates a row-major tensor.
            alpha, beta: scalars; beta None means 1 with c and 0 without.
            backend: None (the GPU for CUDA tensors, "reference" for CPU tensors), "gpu", "reference" (torch) or
                "emulator" (the compiled kernel, executed on the CPU; for small problems).
            workspace: a CUDA uint8 tensor of at least `workspace_bytes`; None takes it from torch's allocator.

        Returns:
            D: `out`, or a new tensor (M, N) or (L, M, N).

        Raises:
            InputError: a tensor or scalar breaks a rule; nothing has been written.
            PlanError: the spec cannot serve these operands.
            HardwareError: the tensors' device is not a Hopper GPU.
        """
        try:
            # What distinguishes one kind of call from another: layouts, types, devices; of addresses only the
            # alignment. Calls that want gradients are never kept, so they are refused each time.
            places = (
                a.data_ptr(),
                b.data_ptr(),
                0 if c is None else c.data_ptr(),
                0 if out is None else out.data_ptr(),
            )
            key = (
                a.shape, a.stride(), a.dtype, a.get_device(), a.requires_grad,
                b.shape, b.stride(), b.dtype, b.get_device(), b.requires_grad,
                None if c is None else _identity(c), None if out is None else _identity(out),
                places[0] & 15 | (places[1] & 15) << 4 | (places[2] & 15) << 8 | (places[3] & 15) << 12,
                backend, beta == 0,
            )  # fmt: skip
        except (AttributeError, RuntimeError):  # no tensors, or without storage: validation says which
            places, key = (0, 0, 0, 0), None
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepare(key, (a, b, c, out), beta, backend)
        return prepared((a, b, c, out), places, alpha, beta, workspace)

    def _prepare(self, key: tuple | None, inputs: tuple, beta: float | None, backend: str | None) -> Callable:
        """Validate a call of a new kind and keep what every call of that kind needs."""
        from cutegemm.run import prepare  # imports torch

        prepared = prepare(self.spec, inputs, beta, backend)
        if key is not None and not any(t is not None and t.requires_grad for t in inputs):
            with self._lock:
                self._prepared[key] = prepared
        return prepared

    def __str__(self) -> str:
        lines = [repr(self.spec), str(self.plan)]
        if self.plan.steps:
            lines.append(f"compiled: {self.resources}")
        return "\n".join(lines)


def _identity(tensor: Any) -> tuple:
    """What tells one kind of tensor from another, beside its address."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device(), tensor.requires_grad


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
    d_dtype = None if spec.d_dtype == AUTO else spec.d_dtype
    reads_c = spec.epilogue != AUTO and "c" in spec.epilogue.names("matrix")
    c_dtype = (ab if spec.c_dtype == AUTO else spec.c_dtype) if reads_c else None
    d_major = "n" if spec.d_major == AUTO else spec.d_major
    return make_problem(
        4096, 4096, 4096, dtype=ab, d_dtype=d_dtype, c_dtype=c_dtype, majors=majors, d_major=d_major
    )


__all__ = ["Gemm", "Kernel", "build", "representative"]
