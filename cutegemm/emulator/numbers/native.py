# SPDX-License-Identifier: Apache-2.0
"""Small functions compiled by LLVM (through llvmlite) when they are first used, in milliseconds."""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir


class Native:
    """The functions of a module as machine code for this processor."""

    def __init__(self, module: ir.Module) -> None:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        machine = binding.Target.from_default_triple().create_target_machine(
            cpu=binding.get_host_cpu_name(),
            features=_features(),
            opt=3,
            jit=True,
        )
        parsed = binding.parse_assembly(str(module))
        parsed.verify()
        self.engine = binding.create_mcjit_compiler(parsed, machine)
        self.engine.finalize_object()

    def function(self, name: str, prototype: Any) -> Any:
        """A function by its name, called as a ctypes prototype says; it keeps the code alive."""
        made = prototype(self.engine.get_function_address(name))
        made.engine = self.engine
        return made


def _features() -> str:
    """This processor's features, with vectors as wide as it has them: the loops here do little else."""
    features = binding.get_host_cpu_features()
    return str(features.flatten()) + (",-prefer-256-bit" if features.get("avx512f") else "")


class Loop:
    """for index in range(0, stop, step), at least once: the body is what is built within."""

    def __init__(self, builder: ir.IRBuilder, stop: Any, step: int) -> None:
        self.b, self.stop, self.step = builder, stop, step

    def __enter__(self) -> Any:
        b = self.b
        before, self.block = b.block, b.append_basic_block()
        b.branch(self.block)
        b.position_at_end(self.block)
        self.index = b.phi(ir.IntType(64))
        self.index.add_incoming(ir.IntType(64)(0), before)
        return self.index

    def __exit__(self, *_: object) -> None:
        b = self.b
        following = b.add(self.index, ir.IntType(64)(self.step))
        self.index.add_incoming(following, b.block)
        after = b.append_basic_block()
        b.cbranch(b.icmp_signed("<", following, self.stop), self.block, after)
        b.position_at_end(after)
