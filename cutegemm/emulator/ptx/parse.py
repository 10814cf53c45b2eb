# SPDX-License-Identifier: Apache-2.0
"""Parses PTX text to kernels: parameters, variables, registers, and a list of instructions with their lines.

The parser supports the output of the DSL, NVRTC and nvcc: nested brace scopes (in which inline assembly declares
registers and labels), `.loc`, vectors, predicates. It does not check instructions: the translation refuses unknown ones
(`translate/`).

Source: PTX ISA 9.0, chapters 4 (syntax), 5 (state spaces, types, variables) and 11 (directives).
"""

from __future__ import annotations

import bisect
import difflib
import functools
import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from cutegemm.emulator.ptx.calls import NAME, Function, formals, inline, renamed
from cutegemm.emulator.ptx.kernel import TYPE_BYTES, Kernel, Param, PtxInstruction, Variable, items
from cutegemm.errors import EmulatorError, field_error


@dataclass
class Module:
    """The kernels of a PTX text."""

    kernels: dict[str, Kernel]
    version: str
    target: str

    @classmethod
    def parse(cls, text: str) -> Module:
        """Parse a PTX module.

        Raises:
            EmulatorError: the text is not PTX (PTX ISA 9.0, chapter 4).
        """
        if not isinstance(text, str):
            raise field_error(EmulatorError, "text", text, "must be PTX text")
        try:
            return _Reader(text).module()
        except (ValueError, LookupError) as e:
            if isinstance(e, EmulatorError):
                raise
            raise EmulatorError(f"cannot be read ({type(e).__name__}: {e}; PTX ISA 4)", field="ptx") from e

    def kernel(self, name: str | None = None) -> Kernel:
        """The kernel called `name`, or the only one.

        Raises:
            EmulatorError: there is no such kernel, or several and no name.
        """
        if name is None and len(self.kernels) == 1:
            return next(iter(self.kernels.values()))
        if not isinstance(name, str) or name not in self.kernels:
            near = [*self.kernels]
            if isinstance(name, str):
                near = difflib.get_close_matches(name, self.kernels, 1, 0.0)
            rule = f"the module holds {', '.join(self.kernels) or 'no kernel'}"
            raise field_error(EmulatorError, "entry", name, rule, near[0] if near else None)
        return self.kernels[name]


@functools.lru_cache(256)
def module_of(text: str) -> Module:
    """`Module.parse`, cached for the last texts; their kernels keep their translations."""
    return Module.parse(text)


_REGISTERS = re.compile(r"\.reg\s*(?:\.v[24]\s+)?\.(\w+)\s+(.*)", re.S)
_LABEL = re.compile(rf"\s*({NAME})\s*:(?!:)")
_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)(?:\s+(\d+))?(?:\s*,\s*function_name[^,]*,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?"
)
_VARIABLE = re.compile(
    r"(?:\.(?:extern|visible|weak|common)\s+)*\.(?P<space>shared|local|const|global)\s+"
    r"(?:\.attribute\([^)]*\)\s*)?(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+"
    rf"(?P<name>{NAME})(?P<dims>(?:\s*\[\s*\d*\s*\])*)\s*(?:=\s*(?P<init>.*))?$",
    re.S,
)

# An item of a body: a statement, label or .loc as (kind, position, text), or the list of items of a brace scope.
Item: TypeAlias = "tuple[str, int, str] | list[Any]"
Source: TypeAlias = tuple[str, int]  # file, line


class _Reader:
    """Parses a text; positions are character offsets."""

    def __init__(self, text: str) -> None:
        blank = lambda m: re.sub(r"[^\n]", " ", m[0])  # noqa: E731  keeps the line count
        text = re.sub(r"/\*.*?\*/", blank, text, flags=re.S)
        self.text = re.sub(r"//[^\n]*", blank, text)
        self.line_starts = [0] + [m.end() for m in re.finditer("\n", self.text)]
        self.files: dict[int, str] = {}
        self.variables: dict[str, Variable] = {}
        self.kernels: dict[str, Kernel] = {}
        self.functions: dict[str, Function] = {}
        for m in re.finditer(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', self.text, re.M):
            self.files[int(m[1])] = m[2]

    def module(self) -> Module:
        version = re.search(r"\.version\s+([\d.]+)", self.text)
        target = re.search(r"\.target\s+([\w, ]+)", self.text)
        if version is None or target is None:
            raise EmulatorError("a PTX module starts with .version and .target (PTX ISA 11.1)", field="ptx")
        pos = target.end()
        entry = re.compile(rf"\.(entry|func)\s+(?:\(([^)]*)\)\s*)?({NAME})")
        while m := entry.search(self.text, pos):
            self._module_variables(pos, m.start())
            pos = self._function(m)
        self._module_variables(pos, len(self.text))
        for kernel in self.kernels.values():
            inline(kernel, self.functions)
        return Module(self.kernels, version[1], target[1].strip())

    def _line(self, pos: int) -> int:
        return bisect.bisect_right(self.line_starts, pos)

    def _module_variables(self, start: int, end: int) -> None:
        for statement in self.text[start:end].split(";"):
            m = re.search(
                r"(\.(?:extern|visible|weak|common)\s+)*\.(shared|const|global)\s.*", statement, re.S
            )
            if m:
                var = _variable(m[0].strip())
                self.variables[var.name] = var

    def _function(self, m: re.Match[str]) -> int:
        """Parse the .entry or .func of a match; returns the offset after it."""
        pos = m.end()
        kernel = Kernel(m[3], variables=dict(self.variables))
        listed = ""
        if self.text[pos:].lstrip().startswith("("):
            start = self.text.index("(", pos)
            pos = self.text.index(")", start) + 1
            listed = self.text[start + 1 : pos - 1]
        params, results = formals(listed), formals(m[2] or "")
        offset = 0
        for x in params:
            offset = -(-offset // x.align) * x.align
            kernel.params.append(Param(x.name, offset, x.size, x.kind))
            offset += x.size
        stop = re.compile(r"[{;]").search(self.text, pos)
        if stop is None:
            raise EmulatorError(f"line {self._line(pos)}: {m[3]} has no body", field="ptx")
        for d in re.finditer(r"\.(\w+)((?:\s+\d+(?:\s*,\s*\d+)*)?)", self.text[pos : stop.start()]):
            kernel.directives[d[1]] = tuple(int(x) for x in re.findall(r"\d+", d[2]))
        if stop[0] == ";":  # a declaration
            return stop.end()
        items, end = self._scope(kernel.name, stop.end())
        _Body(kernel, self).resolve(items, {})
        if m[1] == "entry":
            self.kernels[kernel.name] = kernel
        else:
            kernel.registers |= {x.name: x.kind for x in (*results, *params) if x.register}
            self.functions[kernel.name] = Function(kernel, results, params)
        return end

    def _scope(self, name: str, pos: int) -> tuple[list[Item], int]:
        """Split a brace scope into items; returns them and the offset after its closing brace."""
        items: list[Item] = []
        text = self.text
        while True:
            while text[pos : pos + 1].isspace():
                pos += 1
            if pos >= len(text):
                raise EmulatorError(f"line {self._line(pos)}: {name} is not closed by a brace", field="ptx")
            char = text[pos]
            if char == "}":
                return items, pos + 1
            if char == "{":
                inner, pos = self._scope(name, pos + 1)
                items.append(inner)
            elif char == ";":
                pos += 1
            elif text.startswith((".loc ", ".loc\t", ".file"), pos):
                end = text.index("\n", pos)
                items.append(("loc", pos, text[pos:end]))
                pos = end
            elif label := _LABEL.match(text, pos):
                items.append(("label", pos, label[1]))
                pos = label.end()
            else:
                end = text.index(";", pos)
                items.append(("statement", pos, text[pos:end].strip()))
                pos = end + 1


class _Body:
    """Converts statements to instructions; names of inner scopes become unique."""

    def __init__(self, kernel: Kernel, reader: _Reader) -> None:
        self.kernel, self.reader = kernel, reader
        self.source: Source | None = None
        self.callers: tuple[Source, ...] = ()
        self.inlined: dict[tuple[str, str, str], set[tuple[Source, ...]]] = {}  # callers of a .loc's place
        self.scopes = 0

    def resolve(self, items: list[Item], names: dict[str, str]) -> None:
        """Append the instructions of a scope; `names` are the unique names from enclosing scopes."""
        for item in items:
            if isinstance(item, list):
                self.scopes += 1
                own = {name: f"{name}${self.scopes}" for name in _declared(item)}
                self.resolve(item, names | own)
                continue
            kind, pos, text = item
            if kind == "loc":
                self._locate(text)
            elif kind == "label":
                self.kernel.labels[names.get(text, text)] = len(self.kernel.code)
            elif text.startswith("."):
                self._declare(text, names)
            else:
                self._instruction(renamed(text, names), self.reader._line(pos))

    def _locate(self, text: str) -> None:
        """Source line and callers from a .loc. The place of an inlined call has a .loc of its own before it."""
        m = _LOC.match(text)
        if m is None:
            return
        self.source, self.callers = self._source(m[1], m[2]), ()
        if m[4]:
            outer = self.inlined.get((m[4], m[5], m[6]), set())
            # a place that several callers inline does not tell which of them
            self.callers = (self._source(m[4], m[5]), *(next(iter(outer)) if len(outer) == 1 else ()))
        self.inlined.setdefault((m[1], m[2], m[3]), set()).add(self.callers)

    def _source(self, file: str, line: str) -> Source:
        return self.reader.files.get(int(file), f"file{file}"), int(line)

    def _declare(self, text: str, names: dict[str, str]) -> None:
        if m := _REGISTERS.match(text):
            for name in m[2].split(","):
                name = renamed(name.strip(), names)
                self.kernel.registers[re.sub(r"<\d+>", "<", name)] = m[1]
        elif text.startswith(".param"):  # an argument or result of a call, in local memory
            for x in formals(text):
                name = names.get(x.name, x.name)
                align = max(x.align, TYPE_BYTES[x.kind])
                self.kernel.variables[name] = Variable(name, "local", x.size, align)
        elif re.match(r"\.(shared|local|const|global)\b", text):
            var = _variable(text)
            self.kernel.variables[var.name] = var

    def _instruction(self, text: str, line: int) -> None:
        guard = None
        if m := re.match(r"@(!?)\s*([^\s]+)\s+", text):
            guard = (m[2], m[1] == "!")
            text = text[m.end() :]
        op, _, operands = text.replace("\t", " ").replace("\n", " ").partition(" ")
        self.kernel.code.append(
            PtxInstruction(op, tuple(_split(operands)), guard, line, self.source, self.callers)
        )


def _declared(items: list[Item]) -> list[str]:
    """The registers, labels and arguments that a scope declares."""
    out = []
    for item in items:
        if isinstance(item, list):
            continue
        kind, _, text = item
        if kind == "label":
            out.append(text)
        elif m := _REGISTERS.match(text):
            out += [name.strip() for name in m[2].split(",") if "<" not in name]
        elif text.startswith(".param"):
            out += [x.name for x in formals(text)]
    return out


def _split(text: str) -> list[str]:
    """Operands, split at commas outside braces, brackets and parentheses."""
    out, depth, current = [], 0, ""
    for char in text:
        depth += (char in "{[(") - (char in "}])")
        if char == "," and depth == 0:
            out.append(current.strip())
            current = ""
        else:
            current += char
    return [*out, current.strip()] if current.strip() else out


def _variable(text: str) -> Variable:
    m = _VARIABLE.match(text)
    if m is None or m["type"] not in TYPE_BYTES:
        raise EmulatorError(f"declaration {text!r}: not understood (PTX ISA 5.4)", field="ptx")
    unit = TYPE_BYTES[m["type"]]
    dims = re.findall(r"\[\s*(\d*)\s*\]", m["dims"])
    size: int | None = unit
    for dim in dims:
        size = None if not dim or size is None else size * int(dim)
    data, addresses = b"", []
    for part in items(re.sub(r"[{}]", "", m["init"] or "")):
        value = 0
        if number := re.fullmatch(r"-?(?:0[xX][\da-fA-F]+|\d+)|0[fFdD]([\da-fA-F]+)", part):
            value = int(number[1], 16) if number[1] else int(part, 0)
        elif address := re.fullmatch(rf"(?:generic\(\s*)?({NAME})\s*\)?\s*(?:\+\s*(\d+))?", part):
            addresses.append((len(data), address[1], int(address[2] or 0)))
        else:
            raise EmulatorError(
                f"initial value {part!r} of {m['name']}: not understood (PTX ISA 5.4.4)", field="ptx"
            )
        data += (value % (1 << 8 * unit)).to_bytes(unit, "little")
    return Variable(m["name"], m["space"], size, int(m["align"] or unit), data, tuple(addresses))
