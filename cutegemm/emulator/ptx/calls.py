# SPDX-License-Identifier: Apache-2.0
"""Inlines device functions: the function's body replaces each direct call.

A parameter in the `.param` space becomes the caller's argument, which is in local memory; a parameter in a register is
copied. Registers and labels of the body get new names for each call. Indirect calls, recursive calls and calls of
functions without a body stay; the translation refuses them.

Source: PTX ISA 9.0, 9.7.12.5 (call), 9.7.12.6 (ret), 7.1 (function declarations and definitions).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from cutegemm.emulator.ptx.kernel import TYPE_BYTES, Kernel, PtxInstruction, items

NAME = r"[A-Za-z_$%][\w$]*"
_WORD = re.compile(rf"(?<![\w$.%]){NAME}")
_FORMAL = re.compile(
    r"\.(?P<space>reg|param)\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+(?:\.ptr\s+)?"
    rf"(?:\.(?:global|shared|const|local)\s+)?(?:\.align\s+\d+\s+)?(?P<name>{NAME})\s*(?:\[(?P<count>\d*)\])?"
)


@dataclass(frozen=True)
class Formal:
    """The declaration of a parameter or result, in a register or in memory; sizes in bytes."""

    name: str
    kind: str  # PTX type of the parameter or of its elements
    size: int
    align: int
    register: bool


def formals(text: str) -> list[Formal]:
    """The parameters in a list of declarations."""
    out = []
    for m in _FORMAL.finditer(text):
        unit = TYPE_BYTES[m["type"]]
        size = unit * int(m["count"] or 1)
        out.append(Formal(m["name"], m["type"], size, int(m["align"] or unit), m["space"] == "reg"))
    return out


@dataclass
class Function:
    """A .func: its body as a kernel, its results and its parameters."""

    body: Kernel
    results: list[Formal]
    params: list[Formal]


def renamed(text: str, names: dict[str, str]) -> str:
    """Text with some of its names replaced."""
    return _WORD.sub(lambda m: names.get(m[0], m[0]), text) if names else text


def inline(kernel: Kernel, functions: dict[str, Function]) -> None:
    """Inline the calls of a kernel, in place."""
    if any(ins.parts[0] == "call" for ins in kernel.code):
        inliner = _Inliner(kernel, functions)
        inliner.copy(kernel, {}, (), None)
        kernel.code, kernel.labels = inliner.code, inliner.labels


class _Inliner:
    def __init__(self, kernel: Kernel, functions: dict[str, Function]) -> None:
        self.kernel, self.functions, self.calls = kernel, functions, 0
        self.code: list[PtxInstruction] = []
        self.labels: dict[str, int] = {}

    def copy(self, source: Kernel, names: dict[str, str], active: tuple[str, ...], end: str | None) -> None:
        """Append a body with the renaming `names`; `ret` branches to the label `end`, if there is one.

        active: the functions that are being inlined.
        """
        places: dict[int, list[str]] = {}
        for label, at in source.labels.items():
            places.setdefault(at, []).append(names.get(label, label))
        for i, ins in enumerate(source.code):
            self.labels |= dict.fromkeys(places.get(i, ()), len(self.code))
            operands = tuple(renamed(o, names) for o in ins.operands)
            guard = ins.guard and (renamed(ins.guard[0], names), ins.guard[1])
            ins = self._local(replace(ins, operands=operands, guard=guard))
            name = next((o for o in ins.operands if not o.startswith("(")), "")
            if ins.parts[0] == "call" and name in self.functions and name not in active:
                self._call(name, ins, active)
            elif ins.parts[0] == "ret" and end is not None:
                self.code.append(replace(ins, op="bra", operands=(end,)))
            else:
                self.code.append(ins)
        self.labels |= dict.fromkeys(places.get(len(source.code), ()), len(self.code))

    def _local(self, ins: PtxInstruction) -> PtxInstruction:
        """An access to an argument, as an access to local memory."""
        if ins.parts[0] in ("ld", "st") and ins.parts[1].split("::")[0] == "param":
            address = ins.operands[1 if ins.parts[0] == "ld" else 0]
            base = re.match(r"\[\s*([\w$]+)", address)
            variable = base and self.kernel.variables.get(base[1])
            if variable and variable.space == "local":
                return replace(ins, op=".".join((ins.parts[0], "local", *ins.parts[2:])))
        return ins

    def _call(self, name: str, ins: PtxInstruction, active: tuple[str, ...]) -> None:
        """Append the body of the function `name` in place of a call."""
        function = self.functions[name]
        self.calls += 1
        prefix = f"call{self.calls}$"
        lists = [items(o) for o in ins.operands if o.startswith("(")]
        at = ins.operands.index(name)
        results = lists[0] if at else []
        arguments = lists[-1] if len(ins.operands) > at + 1 else []
        names = {label: prefix + label for label in function.body.labels}
        names |= self._registers(function.body, prefix)
        end = f"{prefix}end"
        if ins.guard:
            skip = (ins.guard[0], not ins.guard[1])
            self.code.append(replace(ins, op="bra", operands=(end,), guard=skip))
        before, after = [], []
        for formal, actual in zip(function.params, arguments, strict=True):
            if formal.register:
                before.append(_move(ins, formal, names[formal.name], actual))
            else:
                names[formal.name] = actual
        for formal, actual in zip(function.results, results, strict=True):
            if formal.register:
                after.append(_move(ins, formal, actual, names[formal.name]))
            else:
                names[formal.name] = actual
        self.kernel.variables |= function.body.variables
        self.code += before
        self.copy(function.body, names, (*active, name), f"{end}$")
        self.labels[f"{end}$"] = len(self.code)
        self.code += after
        self.labels[end] = len(self.code)

    def _registers(self, body: Kernel, prefix: str) -> dict[str, str]:
        """New names for a body's registers; declares them in the kernel."""
        out: dict[str, str] = {}
        texts = (text for ins in body.code for text in (*ins.operands, *(ins.guard or ())[:1]))
        words = {word for text in texts for word in _WORD.findall(text)}
        for word in (*words, *(n for n in body.registers if not n.endswith("<"))):
            kind = body.register_type(word)
            if kind is not None:
                out[word] = f"%{prefix}{word.lstrip('%')}"
                self.kernel.registers[out[word]] = kind
        return out


def _move(ins: PtxInstruction, formal: Formal, to: str, source: str) -> PtxInstruction:
    """The mov of a parameter or result in a register."""
    kind = formal.kind if formal.kind == "pred" else "b" + re.sub(r"\D", "", formal.kind)
    return replace(ins, op=f"mov.{kind}", operands=(to, source), guard=None)
