# SPDX-License-Identifier: Apache-2.0
"""Device functions: every direct call is replaced by the body of the function it names.

A formal parameter in the `.param` space becomes the caller's argument, which is kept in local memory; one in a
register is copied. Registers and labels of the body get names of their own at each call. A call through a
register, of a function without a body, or of a function that calls itself is left in place, where translation
refuses it.

Source: PTX ISA 9.0, 9.7.12.5 (call), 9.7.12.6 (ret), 7.1 (function declarations and definitions).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from cutegemm.emulator.ptx.kernel import Kernel, PtxInstruction

_WORD = re.compile(r"(?<![\w$.])[%$A-Za-z_][\w$]*")


@dataclass
class Function:
    """A .func: its body as if it were a kernel, and its formal results and parameters, (name, register type)."""

    body: Kernel
    results: list[tuple[str, str | None]] = field(default_factory=list)  # None: in the .param space
    params: list[tuple[str, str | None]] = field(default_factory=list)


def formals(text: str) -> list[tuple[str, str | None]]:
    """Names in a list of formals, with the type of those in registers."""
    out = []
    for item in text.split(",") if text.strip() else []:
        m = re.search(
            r"\.(reg|param)\s.*?\.(\w+)\s+([%$A-Za-z_][\w$]*)\s*(?:\[\d*\])?\s*$", item.strip(), re.S
        )
        if m:
            out.append((m[3], m[2] if m[1] == "reg" else None))
    return out


def inline(kernel: Kernel, functions: dict[str, Function]) -> None:
    """Replace every call that can be replaced, in place."""
    _Inliner(kernel, functions).run()


class _Inliner:
    def __init__(self, kernel: Kernel, functions: dict[str, Function]) -> None:
        self.kernel, self.functions, self.calls = kernel, functions, 0

    def run(self) -> None:
        if any(ins.parts[0] == "call" for ins in self.kernel.code):
            code: list[PtxInstruction] = []
            labels: dict[str, int] = {}
            self._copy(self.kernel, code, labels, {}, (), None)
            self.kernel.code, self.kernel.labels = code, labels

    def _copy(
        self,
        source: Kernel,
        code: list[PtxInstruction],
        labels: dict[str, int],
        names: dict[str, str],
        active: tuple[str, ...],
        end: str | None,
    ) -> None:
        """Append a body under the renaming `names`; `ret` goes to the label `end`, if any."""
        places: dict[int, list[str]] = {}
        for label, at in source.labels.items():
            places.setdefault(at, []).append(names.get(label, label))
        for i, ins in enumerate(source.code):
            for label in places.get(i, ()):
                labels[label] = len(code)
            operands = tuple(_renamed(o, names) for o in ins.operands)
            guard = ins.guard and (_renamed(ins.guard[0], names), ins.guard[1])
            ins = self._local(replace(ins, operands=operands, guard=guard))
            name = self._callee(ins, active) if ins.parts[0] == "call" else None
            if name:
                self._call(name, ins, code, labels, active)
            elif ins.parts[0] == "ret" and end is not None:
                code.append(replace(ins, op="bra", operands=(end,)))
            else:
                code.append(ins)
        for label in places.get(len(source.code), ()):
            labels[label] = len(code)

    def _local(self, ins: PtxInstruction) -> PtxInstruction:
        """An access to an argument is one to the local memory that holds it."""
        if ins.parts[0] in ("ld", "st") and ins.parts[1].split("::")[0] == "param":
            address = ins.operands[1 if ins.parts[0] == "ld" else 0]
            base = re.match(r"\[\s*([\w$]+)", address)
            variable = base and self.kernel.variables.get(base[1])
            if variable and variable.space == "local":
                return replace(ins, op=".".join((ins.parts[0], "local", *ins.parts[2:])))
        return ins

    def _callee(self, ins: PtxInstruction, active: tuple[str, ...]) -> str | None:
        name = next((o for o in ins.operands if not o.startswith("(")), "")
        return name if name in self.functions and name not in active else None

    def _call(
        self,
        name: str,
        ins: PtxInstruction,
        code: list[PtxInstruction],
        labels: dict[str, int],
        active: tuple[str, ...],
    ) -> None:
        """Append the body of the function `name` in place of a call."""
        function = self.functions[name]
        self.calls += 1
        prefix = f"call{self.calls}$"
        lists = [_items(o) for o in ins.operands if o.startswith("(")]
        at = ins.operands.index(name)
        results = lists[0] if at else []
        arguments = lists[-1] if len(ins.operands) > at + 1 else []
        names = {label: prefix + label for label in function.body.labels}
        names |= self._registers(function.body, prefix)
        end = f"{prefix}end"
        if ins.guard:
            code.append(replace(ins, op="bra", operands=(end,), guard=(ins.guard[0], not ins.guard[1])))
        before, after = [], []
        for (formal, kind), actual in zip(function.params, arguments, strict=True):
            if kind is None:
                names[formal] = actual
            else:
                before.append(
                    replace(ins, op=f"mov.{_move(kind)}", operands=(names[formal], actual), guard=None)
                )
        for (formal, kind), actual in zip(function.results, results, strict=True):
            if kind is None:
                names[formal] = actual
            else:
                after.append(
                    replace(ins, op=f"mov.{_move(kind)}", operands=(actual, names[formal]), guard=None)
                )
        self.kernel.variables |= function.body.variables
        code += before
        inner = f"{end}$" if after else end
        self._copy(function.body, code, labels, names, (*active, name), inner)
        if after:
            labels[inner] = len(code)
            code += after
        labels[end] = len(code)

    def _registers(self, body: Kernel, prefix: str) -> dict[str, str]:
        """New names of a body's registers, declared in the kernel."""
        out: dict[str, str] = {}
        words = {
            w for ins in body.code for o in (*ins.operands, *(ins.guard or ())[:1]) for w in _WORD.findall(o)
        }
        for word in (*words, *(n for n in body.registers if not n.endswith("<"))):
            kind = body.register_type(word)
            if kind is not None:
                out[word] = f"%{prefix}{word.lstrip('%')}"
                self.kernel.registers[out[word]] = kind
        return out


def _renamed(text: str, names: dict[str, str]) -> str:
    return _WORD.sub(lambda m: names.get(m[0], m[0]), text) if names else text


def _items(text: str) -> list[str]:
    return [x.strip() for x in text.strip("() ").split(",") if x.strip()]


def _move(kind: str) -> str:
    """The type under which mov copies a register of a type."""
    return kind if kind == "pred" else "b" + re.sub(r"\D", "", kind)
