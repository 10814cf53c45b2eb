# SPDX-License-Identifier: Apache-2.0
"""What commands are given: a spec as text, a problem, an epilogue by name, a GPU. Text is read, never executed."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cutegemm.errors import GemmError, InputError, SpecError, field_error

if TYPE_CHECKING:
    from cutegemm.arch.device import Device
    from cutegemm.epilogue.graph import Graph
    from cutegemm.problems import Problem
    from cutegemm.spec import GemmSpec

GPUS = ("h200", "h100")
DTYPES = ("bf16", "fp16", "fp32")
MAJORS = ("kn", "kk", "mn", "mk")
EXAMPLE = "GemmSpec(tile=Tile(128, 256, 64), cluster=(2, 1))"
# of the library's functions, those that are no epilogues by themselves
_HELPERS = {"linear_combination"}


def _one_of(words: tuple[str, ...]) -> Any:
    return lambda incomplete: [x for x in words if x.startswith(incomplete)]


def _names(incomplete: str) -> list[str]:
    return [x for x in epilogues() if x.startswith(incomplete)]


M = Annotated[int, typer.Argument(metavar="M", min=0, help="rows of D")]
N = Annotated[int, typer.Argument(metavar="N", min=0, help="columns of D")]
K = Annotated[int, typer.Argument(metavar="K", min=0, help="columns of A, rows of B")]
Spec = Annotated[
    str, typer.Option("--spec", help=f'fields that you fix, such as "{EXAMPLE}"', metavar="SPEC")
]
Epilogue = Annotated[
    str,
    typer.Option(
        help="of cutegemm.epilogue, such as bias_act(relu); or FILE.py:NAME",
        metavar="NAME",
        autocompletion=_names,
    ),
]
GpuName = Annotated[
    str,
    typer.Option(
        "--gpu",
        help="h200 or h100; without it the GPU here, else an H200",
        metavar="GPU",
        autocompletion=_one_of(GPUS),
    ),
]
Dtype = Annotated[
    str,
    typer.Option(help="of A and B: bf16, fp16 or fp32", metavar="TYPE", autocompletion=_one_of(DTYPES)),
]
Batch = Annotated[int, typer.Option(min=0, help="GEMMs of this shape in one call")]
Majors = Annotated[
    str,
    typer.Option(
        help="unit-stride axes of A and B: kn (both row-major), kk (TN), mn, mk",
        metavar="AXES",
        autocompletion=_one_of(MAJORS),
    ),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON (`cutegemm schema` describes it)")]


@dataclass(frozen=True)
class Asked:
    """A spec, the problem it is asked for, and the GPU with where that comes from."""

    spec: GemmSpec
    problem: Problem
    device: Device
    source: str


def asked(
    extents: tuple[int, int, int],
    spec: str = "",
    epilogue: str = "",
    gpu: str = "",
    *,
    dtype: str = "",
    batch: int = 1,
    majors: str = "",
) -> Asked:
    """Read what `explain` and the commands like it are given.

    Raises:
        GemmError: an option has no legal meaning.
    """
    import dataclasses

    from cutegemm.problems import problem

    wanted = spec_of(spec)
    graph = graph_of(epilogue)
    if graph is not None:
        wanted = dataclasses.replace(wanted, epilogue=graph)
    given = wanted.given()
    m, n, k = extents
    made = problem(
        m, n, k,
        batch=batch,
        dtype=dtype or given.get("a_dtype") or given.get("b_dtype") or "bf16",
        d_dtype=given.get("d_dtype"),
        majors=majors or given.get("a_major", "k") + given.get("b_major", "n"),
        d_major=given.get("d_major", "n"),
        epilogue=graph,
    )  # fmt: skip
    device, source = device_of(gpu)
    return Asked(wanted, made, device, source)


def device_of(name: str) -> tuple[Device, str]:
    """The planner's figures of a GPU by its short name, or of the one here; and where they come from."""
    from cutegemm.arch import records

    if not name:
        from cutegemm.cli.gpus import device_here

        return device_here()
    known = {"h200": records.H200, "h100": records.H100}
    if name.lower() not in known:
        raise field_error(InputError, "--gpu", name, f"must be one of {', '.join(known)}", "h200")
    return known[name.lower()], "--gpu"


def spec_of(text: str) -> GemmSpec:
    """A spec from `GemmSpec(...)`, or from what stands in its parentheses.

    Raises:
        SpecError: the text is not a spec; `GemmSpec`'s own errors.

    Example:
        >>> spec_of("tile=(128, 256), schedule='pingpong'")
        GemmSpec(tile=Tile(m=128, n=256, k=64), schedule='pingpong')
    """
    from cutegemm.spec import GemmSpec

    rule = "must be GemmSpec(...) with literal values"
    text = text.strip()
    whole = text if text.startswith("GemmSpec(") else f"GemmSpec({text})"
    try:
        found = ast.parse(whole, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        # deep nesting exhausts the parser
        raise field_error(SpecError, "--spec", text, rule, EXAMPLE) from error
    if not isinstance(found, ast.Call) or _called(found) != "GemmSpec" or found.args:
        raise field_error(SpecError, "--spec", text, rule, EXAMPLE)
    legal = [f.name for f in fields(GemmSpec)]
    values = {}
    for keyword in found.keywords:
        name = keyword.arg or "**"
        if name not in legal:
            near = difflib.get_close_matches(name, legal, 1)
            raise field_error(
                SpecError, name, ast.unparse(keyword.value), "is not a field of GemmSpec", *near
            )
        values[name] = _literal(keyword.value, name)
    return GemmSpec(**values)


def _called(node: ast.expr) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _literal(node: ast.expr, field: str) -> Any:
    """A value of a spec: a literal, `Tile(...)`, or an epilogue of the library."""
    if field == "epilogue":
        return graph_of(ast.unparse(node))
    if _called(node) == "Tile" and isinstance(node, ast.Call):
        from cutegemm.spec import Tile

        try:
            named = {x.arg or "": ast.literal_eval(x.value) for x in node.keywords}
            return Tile(*(ast.literal_eval(x) for x in node.args), **named)
        except (TypeError, ValueError) as error:
            if isinstance(error, GemmError):
                raise
            raise field_error(SpecError, field, ast.unparse(node), "must be Tile(m, n, k)") from error
    try:
        return ast.literal_eval(node)
    except (TypeError, ValueError) as error:
        raise field_error(SpecError, field, ast.unparse(node), "must be a literal value") from error


def epilogues() -> list[str]:
    """The names that `--epilogue` knows."""
    from cutegemm.epilogue import library

    return [x for x in library.__all__ if x not in _HELPERS]


def graph_of(text: str) -> Graph | None:
    """An epilogue of the library by name, with words and numbers in parentheses, or of a Python file.

    Raises:
        InputError: there is none of that name.

    Example:
        >>> print(graph_of("bias_act(relu)"))
        d = relu(acc + bias)
    """
    text = text.strip()
    if not text:
        return None
    if ".py:" in text:
        return _of_file(*text.rsplit(":", 1))
    name, _, inside = text.removeprefix("epi.").partition("(")
    if name not in epilogues():
        near = difflib.get_close_matches(name, epilogues(), 1)
        rule = f"must be FILE.py:NAME or one of {', '.join(epilogues())}"
        raise field_error(InputError, "--epilogue", text, rule, *near)
    from cutegemm.epilogue import library

    words = [x.strip().strip("'\"") for x in inside.rstrip(")").split(",") if x.strip()]
    arguments: list[Any] = []
    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        plain = _value(value.strip("'\" ") if equals else word)
        if equals:
            options[key.strip()] = plain
        else:
            arguments.append(plain)
    try:
        made: Graph = getattr(library, name)(*arguments, **options)
    except TypeError as error:
        raise field_error(InputError, "--epilogue", text, str(error)) from error
    return made


def _value(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word


def _of_file(path: str, name: str) -> Graph:
    """An epilogue that a Python file defines; the file runs."""
    import runpy

    from cutegemm.epilogue.graph import Graph

    if not Path(path).is_file():
        raise field_error(InputError, "--epilogue", f"{path}:{name}", "must name a Python file that is there")
    try:
        found = runpy.run_path(path).get(name)
        if callable(found) and not isinstance(found, Graph):
            found = found()
    except GemmError:
        raise
    # a user's file raises what it likes, and may end the process
    except (Exception, SystemExit) as error:
        rule = f"does not run: {type(error).__name__}: {error}"
        raise field_error(InputError, "--epilogue", f"{path}:{name}", rule) from error
    if not isinstance(found, Graph):
        rule = "must name an epilogue graph, as epi.define makes it"
        raise field_error(InputError, "--epilogue", f"{path}:{name}", rule)
    return found


__all__ = [
    "Asked", "Batch", "Dtype", "Epilogue", "GpuName", "Json", "K", "M", "Majors", "N", "Spec",
    "asked", "device_of", "epilogues", "graph_of", "spec_of",
]  # fmt: skip
