# SPDX-License-Identifier: Apache-2.0
"""PTX text to kernels: parameters, variables, registers, and a flat list of instructions with their lines.

The reader takes what the DSL, NVRTC and nvcc emit: one-line and nested brace scopes (inline assembly declares
registers and labels of its own in them), `.loc` line marks, vectors, predicates. It knows the grammar, not the
instructions: an unknown instruction is refused when its kernel is translated (`translate/`).

Source: PTX ISA 9.0, chapters 4 (syntax), 5 (state spaces, types, variables) and 11 (directives).
"""

from __future__ import annotations

import difflib
import functools
import re
from dataclasses import dataclass
from typing import TypeAlias

from cutegemm.emulator.ptx.calls import Function, formals, inline
from cutegemm.emulator.ptx.kernel import TYPE_BYTES, Kernel, Param, PtxInstruction, Variable
from cutegemm.errors import EmulatorError, field_error


@dataclass
class Module:
    """Every kernel of a PTX text."""

    kernels: dict[str, Kernel]
    version: str
    target: str

    @classmethod
    def parse(cls, text: str) -> Module:
        """Read a PTX module.

        Raises:
            EmulatorError: text that is not PTX as described in PTX ISA 9.0 chapter 4.
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
            EmulatorError: no such kernel, or several and no name.
        """
        if name is None and len(self.kernels) == 1:
            return next(iter(self.kernels.values()))
        if not isinstance(name, str) or name not in self.kernels:
            near = (
                difflib.get_close_matches(name, self.kernels, 1, 0.0)
                if isinstance(name, str)
                else [*self.kernels]
            )
            rule = f"the module holds {', '.join(self.kernels) or 'no kernel'}"
            raise field_error(EmulatorError, "entry", name, rule, near[0] if near else None)
        return self.kernels[name]


@functools.lru_cache(256)
def module_of(text: str) -> Module:
    """`Module.parse`, once for each of the last texts; their kernels keep their translations."""
    return Module.parse(text)


_NAME = r"[A-Za-z_$%][\w$]*"
_IDENT = re.compile(rf"(?<![\w$.%]){_NAME}")
_LABEL = re.compile(rf"\s*({_NAME})\s*:(?!:)")
_VARIABLE = re.compile(
    r"(?:\.(?:extern|visible|weak|common)\s+)*\.(?P<space>shared|local|const|global)\s+"
    r"(?:\.attribute\([^)]*\)\s*)?(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+"
    rf"(?P<name>{_NAME})(?P<dims>(?:\s*\[\s*\d*\s*\])*)\s*(?:=\s*(?P<init>.*))?$",
    re.S,
)
_ARGUMENT = re.compile(
    rf"\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+(?P<name>{_NAME})\s*(?:\[(?P<count>\d+)\])?$"
)
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(?P<a1>\d+)\s+)?\.(?P<type>\w+)\s+(?:\.ptr\s+)?(?:\.(?:global|shared|const|local)\s+)?"
    rf"(?:\.align\s+\d+\s+)?(?P<name>{_NAME})(?:\[(?P<count>\d+)\])?"
)

Item: TypeAlias = tuple[str, int, str]  # of a body: kind, position, text


class _Reader:
    """Reads the text once; positions are character offsets, from which the line of a statement follows."""

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
        entry = re.compile(rf"\.(entry|func)\s+(?:\(([^)]*)\)\s*)?({_NAME})")
        while True:
            m = entry.search(self.text, pos)
            self._module_variables(pos, m.start() if m else len(self.text))
            if m is None:
                break
            pos = self._function(m)
        for kernel in self.kernels.values():
            inline(kernel, self.functions)
        return Module(self.kernels, version[1], target[1].strip())

    def _line(self, pos: int) -> int:
        import bisect

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
        pos = m.end()
        kernel = Kernel(m[3], variables=dict(self.variables))
        rest, listed = self.text[pos:].lstrip(), ""
        if rest.startswith("("):
            start = self.text.index("(", pos)
            pos = self.text.index(")", start) + 1
            listed = self.text[start + 1 : pos - 1]
            _params(kernel, listed)
        stop = re.compile(r"[{;]").search(self.text, pos)
        if stop is None:
            raise EmulatorError(f"line {self._line(pos)}: {m[3]} has no body", field="ptx")
        for d in re.finditer(r"\.(\w+)((?:\s+\d+(?:\s*,\s*\d+)*)?)", self.text[pos : stop.start()]):
            kernel.directives[d[1]] = tuple(int(x) for x in re.findall(r"\d+", d[2]))
        if stop[0] == ";":  # a declaration
            return stop.end()
        end = self._body(kernel, stop.end())
        if m[1] == "entry":
            self.kernels[kernel.name] = kernel
        else:
            function = Function(kernel, formals(m[2] or ""), formals(listed))
            kernel.registers |= {name: kind for name, kind in (*function.results, *function.params) if kind}
            self.functions[kernel.name] = function
        return end

    def _body(self, kernel: Kernel, pos: int) -> int:
        """Split the body into statements, then resolve scopes; returns the offset past its closing brace."""
        items: list[Item] = []
        depth, text = 0, self.text
        while True:
            while text[pos : pos + 1].isspace():
                pos += 1
            if pos >= len(text):
                raise EmulatorError(
                    f"line {self._line(pos)}: {kernel.name} is not closed by a brace", field="ptx"
                )
            char = text[pos]
            if char in "{}":
                pos += 1
                if char == "}" and depth == 0:
                    break
                depth += 1 if char == "{" else -1
                items.append((char, pos, ""))
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
        _Body(kernel, self).resolve(items)
        return pos


class _Body:
    """Turns statements into instructions, giving each inline-assembly scope names of its own."""

    def __init__(self, kernel: Kernel, reader: _Reader) -> None:
        self.kernel, self.reader = kernel, reader
        self.source: tuple[str, int] | None = None

    def resolve(self, items: list[Item]) -> None:
        scopes = self._scopes(items)
        chain: list[dict[str, str]] = []
        for index, (kind, pos, text) in enumerate(items):
            if kind == "{":
                chain.append(scopes[index])
            elif kind == "}":
                chain.pop()
            elif kind == "loc":
                m = re.match(r"\.loc\s+(\d+)\s+(\d+)", text)
                if m:
                    self.source = (self.reader.files.get(int(m[1]), f"file{m[1]}"), int(m[2]))
            elif kind == "label":
                self.kernel.labels[self._rename(text, chain)] = len(self.kernel.code)
            elif text.startswith("."):
                self._declare(text, chain)
            else:
                self._instruction(self._rename(text, chain), self.reader._line(pos))

    @staticmethod
    def _scopes(items: list[Item]) -> dict[int, dict[str, str]]:
        """Per opening brace: local name -> unique name, for registers and labels declared in that scope."""
        stack: list[dict[str, str]] = []
        scopes: dict[int, dict[str, str]] = {}
        for index, (kind, _, text) in enumerate(items):
            if kind == "{":
                scopes[index] = {}
                stack.append(scopes[index])
            elif kind == "}":
                stack.pop()
            elif stack and kind == "label":
                stack[-1][text] = f"{text}.{len(scopes)}"
            elif stack and (m := re.match(r"\.reg\s+\.\w+\s+(.*)", text, re.S)):
                for name in m[1].split(","):
                    if "<" not in name:
                        stack[-1][name.strip()] = f"{name.strip()}.{len(scopes)}"
            elif stack and (m := _ARGUMENT.match(text)):
                stack[-1][m["name"]] = f"{m['name']}${len(scopes)}"
        return scopes

    @staticmethod
    def _rename(text: str, chain: list[dict[str, str]]) -> str:
        if not chain:
            return text

        def unique(m: re.Match[str]) -> str:
            for scope in reversed(chain):
                if m[0] in scope:
                    return scope[m[0]]
            return m[0]

        return _IDENT.sub(unique, text)

    def _declare(self, text: str, chain: list[dict[str, str]]) -> None:
        if m := re.match(r"\.reg\s+(?:\.v[24]\s+)?\.(\w+)\s+(.*)", text, re.S):
            for name in m[2].split(","):
                name = self._rename(name.strip(), chain)
                self.kernel.registers[re.sub(r"<\d+>", "<", name)] = m[1]
        elif m := _ARGUMENT.match(text):  # an argument or result of a call: local memory of its own
            unit = TYPE_BYTES[m["type"]]
            name = self._rename(m["name"], chain)
            size = unit * int(m["count"] or 1)
            self.kernel.variables[name] = Variable(name, "local", size, max(int(m["align"] or unit), unit))
        elif re.match(r"\.(shared|local|const|global)\b", text):
            var = _variable(text)
            self.kernel.variables[var.name] = var

    def _instruction(self, text: str, line: int) -> None:
        guard = None
        if m := re.match(r"@(!?)\s*([^\s]+)\s+", text):
            guard = (m[2], m[1] == "!")
            text = text[m.end() :]
        op, _, rest = text.replace("\t", " ").replace("\n", " ").partition(" ")
        self.kernel.code.append(PtxInstruction(op, tuple(_split(rest)), guard, line, self.source))


def _split(text: str) -> list[str]:
    """Operands at the commas outside braces, brackets and parentheses."""
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
    data = b""
    if m["init"]:
        numbers = re.findall(r"-?0[xX][\da-fA-F]+|0[fF][\da-fA-F]{8}|-?\d+", m["init"])
        values = [int(n[2:], 16) if n[:2] in ("0f", "0F") else int(n, 0) for n in numbers]
        data = b"".join((v % (1 << 8 * unit)).to_bytes(unit, "little") for v in values)
    return Variable(m["name"], m["space"], size, int(m["align"] or unit), data)


def _params(kernel: Kernel, text: str) -> None:
    offset = 0
    for m in _PARAM.finditer(text):
        unit = TYPE_BYTES[m["type"]]
        align = int(m["a1"] or unit)
        size = unit * int(m["count"] or 1)
        offset = -(-offset // align) * align
        kernel.params.append(Param(m["name"], offset, size, m["type"]))
        offset += size
