# SPDX-License-Identifier: Apache-2.0
"""Helpers for small loops that LLVM (llvmlite) compiles on first use, in milliseconds."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import binding, ir

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()


class Native:
    """A module compiled for this CPU."""

    def __init__(self, module: ir.Module) -> None:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        features = binding.get_host_cpu_features()
        # these loops are mostly vector arithmetic, so they use the widest registers
        widest = ",-prefer-256-bit" if features.get("avx512f") else ""
        machine = binding.Target.from_default_triple().create_target_machine(
            cpu=binding.get_host_cpu_name(), features=f"{features.flatten()}{widest}", opt=3, jit=True
        )
        parsed = binding.parse_assembly(str(module))
        parsed.verify()
        self.engine = binding.create_mcjit_compiler(parsed, machine)
        self.engine.finalize_object()

    def function(self, name: str, prototype: Any) -> Any:
        """A function with the signature of a ctypes prototype."""
        function = prototype(self.engine.get_function_address(name))
        function.engine = self.engine
        return function


@contextmanager
def loop(b: ir.IRBuilder, stop: Any, step: int) -> Iterator[Any]:
    """for index in range(0, stop, step), at least once: its body is built inside the with statement."""
    before, body = b.block, b.append_basic_block()
    b.branch(body)
    b.position_at_end(body)
    index = b.phi(I64)
    index.add_incoming(I64(0), before)
    yield index
    following = b.add(index, I64(step))
    index.add_incoming(following, b.block)
    after = b.append_basic_block()
    b.cbranch(b.icmp_signed("<", following, stop), body, after)
    b.position_at_end(after)


def splat(kind: ir.VectorType, x: float) -> ir.Constant:
    """A constant in every lane."""
    return ir.Constant(kind, [x] * kind.count)


def load_vector(b: ir.IRBuilder, pointer: Any, index: Any, kind: ir.VectorType, align: int = 4) -> Any:
    """Load consecutive elements from `pointer[index]` on."""
    out = b.load(b.bitcast(b.gep(pointer, [index]), kind.as_pointer()))
    out.align = align
    return out


def store_vector(b: ir.IRBuilder, value: Any, pointer: Any, index: Any) -> None:
    """The inverse of `load_vector`."""
    b.store(value, b.bitcast(b.gep(pointer, [index]), value.type.as_pointer())).align = 4


def any_lane(b: ir.IRBuilder, flags: Any) -> Any:
    """The or of all lanes of a vector of 32-bit flags."""
    lanes = (b.extract_element(flags, I32(lane)) for lane in range(flags.type.count))
    return functools.reduce(b.or_, lanes)
