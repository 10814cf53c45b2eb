# SPDX-License-Identifier: Apache-2.0
"""Arguments of commands: a spec as text, a problem, an epilogue by name, a GPU. Text is parsed, never executed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cutegemm.checks import choice, integer
from cutegemm.errors import GemmError, InputError, SpecError, field_error

if TYPE_CHECKING:
    from cutegemm.arch.device import Device
    from cutegemm.epilogue.graph import Graph
    from cutegemm.problems import Problem
    from cutegemm.spec import GemmSpec

GPUS = ("h200", "h100")  # names of records in `arch.records`
DTYPES = ("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2", "int8", "uint8")
AXES = {"m": "rows", "n": "columns", "k": "depth"}  # names in `request.group_forms`
MAJORS = ("kn", "kk", "mn", "mk")
EXAMPLE = "GemmSpec(tile=Tile(128, 256, 64), cluster=(2, 1))"
# functions of the library that are not epilogues
_HELPERS = {"linear_combination"}


def option(name: str, metavar: str, help: str, values: Callable[[], Iterable[str]] = tuple) -> Any:
    """An option whose values shells complete."""
    # typer requires this parameter name
    complete = lambda incomplete: [x for x in values() if x.startswith(incomplete)]
    return typer.Option(name, metavar=metavar, help=help, autocompletion=complete)


M = Annotated[int, typer.Argument(metavar="M", min=0, help="rows of D")]
N = Annotated[int, typer.Argument(metavar="N", min=0, help="columns of D")]
K = Annotated[int, typer.Argument(metavar="K", min=0, help="columns of A, rows of B")]
Spec = Annotated[str, option("--spec", "SPEC", f'fields that you choose, such as "{EXAMPLE}"')]
_EPILOGUE = "one of cutegemm.epilogue, such as bias_act(relu), or FILE.py:NAME"
Epilogue = Annotated[str, option("--epilogue", "NAME", _EPILOGUE, lambda: epilogues())]
GpuName = Annotated[
    str, option("--gpu", "GPU", "h200 or h100; by default this machine's GPU, else an H200", lambda: GPUS)
]
Dtype = Annotated[str, option("--dtype", "TYPE", f"type of A and B: {', '.join(DTYPES)}", lambda: DTYPES)]
BDtype = Annotated[
    str,
    option(
        "--b-dtype",
        "TYPE",
        "type of B, if A and B have two types of fp8 or of 8-bit integers",
        lambda: DTYPES,
    ),
]
Batch = Annotated[int, typer.Option(min=0, metavar="L", help="GEMMs of this shape in one call")]
_MAJORS = "unit-stride axes of A and B: kn (both row-major), kk (TN), mn, mk"
Majors = Annotated[str, option("--majors", "AXES", _MAJORS, lambda: MAJORS)]
_GROUPS = "a call of grouped_mm with G groups; M (or N or K, see --along) counts all"
Groups = Annotated[int | None, typer.Option("--groups", metavar="G", min=1, help=_GROUPS)]
_ALONG = "axis that the groups lie along: m (rows of A), n (columns of B) or k"
Along = Annotated[str, option("--along", "AXIS", _ALONG, lambda: AXES)]
# of a command that refuses groups
NoGroups = Annotated[int | None, typer.Option("--groups", metavar="G", hidden=True)]
NoAlong = Annotated[str, typer.Option("--along", metavar="AXIS", hidden=True)]
Json = Annotated[bool, typer.Option("--json", help="print JSON (`cutegemm schema` prints its schema)")]


@dataclass(frozen=True)
class Case:
    """A spec, a problem, a GPU, the origin of the GPU, and the form of groups, if the problem has groups."""

    spec: GemmSpec
    problem: Problem
    device: Device
    source: str
    form: str = ""

    @property
    def flops(self) -> int:
        """The most multiplications and additions of a call; with groups, as many as for one matrix of all rows."""
        # every row, column or k belongs to at most one group
        return self.problem.flops // (self.problem.batch if self.form else 1)


def case(
    extents: tuple[int, int, int], spec: str | GemmSpec = "", epilogue: str = "", gpu: str = "", *, dtype: str = "",
    b_dtype: str = "", batch: int = 1, majors: str = "", groups: int | None = None, along: str = "",
) -> Case:  # fmt: skip
    """Parse the arguments that `explain` and similar commands share.

    Raises:
        GemmError: an option is illegal.
    """
    from cutegemm.arch.architectures import DEFAULT as LIMITS
    from cutegemm.epilogue.graph import Graph
    from cutegemm.gemm.representatives import operand_types
    from cutegemm.problems import problem

    wanted = spec_of(spec) if isinstance(spec, str) else spec
    graph = graph_of(epilogue)
    if graph is not None:
        wanted = replace(wanted, epilogue=graph)
    given = wanted.given()
    if along and groups is None:
        raise field_error(InputError, "--along", along, "needs --groups, the number of groups")
    form = AXES[choice(InputError, "--along", along.lower() or "m", tuple(AXES))]
    if groups is not None and batch != 1:
        raise field_error(InputError, "--batch", batch, "groups lie in one matrix, so there is no batch", 1)
    m, n, k = extents
    if groups is not None:
        integer(InputError, "--groups", groups, 1, LIMITS.max_extent)
    made = problem(
        m, n, k,
        batch=groups or batch,
        dtype=dtype or operand_types(wanted)[0],
        b_dtype=b_dtype or given.get("b_dtype"),
        d_dtype=given.get("d_dtype"),
        majors=majors or given.get("a_major", "k") + given.get("b_major", "n"),
        d_major=given.get("d_major", "n"),
        # scales and zero points are inputs of an epilogue
        epilogue=wanted.epilogue if isinstance(wanted.epilogue, Graph) else None,
    )  # fmt: skip
    device, source = device_of(gpu)
    if groups is None:
        return Case(wanted, made, device, source)
    from cutegemm.request.group_forms import all_groups

    kinds = wanted.epilogue.tensors if isinstance(wanted.epilogue, Graph) else {}
    return Case(wanted, all_groups(made, form, kinds), device, source, form)


def refuse_groups(groups: int | None, along: str, command: str) -> None:
    """Refuse groups in a command that has none.

    Raises:
        InputError: they are given.
    """
    for name, given in (("--groups", groups), ("--along", along)):
        if given or given == 0:
            rule = (
                f"{command} measures kernels of build, and no tuned entry is for groups; time specs with `cutegemm "
                "bench --groups` or `diff --groups`: fields such as tile, cluster, schedule, stages and swap, as "
                "`explain --groups --why` lists them"
            )
            raise field_error(InputError, name, given, rule)


def device_of(name: str) -> tuple[Device, str]:
    """The planner's record of a GPU by its short name, or of the GPU of this machine, and its origin."""
    from cutegemm.arch import records

    if not name:
        from cutegemm.cli.gpus import device_here

        return device_here()
    return getattr(records, choice(InputError, "--gpu", name.lower(), GPUS).upper()), "--gpu"


def spec_of(text: str, name: str = "--spec") -> GemmSpec:
    """A spec from the text `GemmSpec(...)`, or from the arguments alone; `name` is that of the option.

    Raises:
        SpecError: the text is not a spec; or an error of `GemmSpec`.

    Example:
        >>> spec_of("tile=(128, 256), schedule='pingpong'")
        GemmSpec(tile=Tile(m=128, n=256, k=64), schedule='pingpong')
    """
    from cutegemm.spec import GemmSpec

    text = text.strip()
    call = _call(text if text.startswith("GemmSpec(") else f"GemmSpec({text})")
    if call is None or _name(call) != "GemmSpec" or call.args:
        raise field_error(SpecError, name, text, "must be GemmSpec(...) with literal values", EXAMPLE)
    return GemmSpec(**{name: _field(value, name) for name, value in _keywords(call).items()})


def _call(text: str) -> ast.Call | None:
    """The syntax tree of a Python call; None for any other text."""
    try:
        node = ast.parse(text, mode="eval").body
    # deep nesting exhausts the parser
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return node if isinstance(node, ast.Call) else None


def _name(node: ast.expr) -> str:
    """The name of the called function."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _keywords(call: ast.Call) -> dict[str, ast.expr]:
    """The keyword arguments of a call by name.

    Raises:
        InputError: a name is given twice.
    """
    found: dict[str, ast.expr] = {}
    for keyword in call.keywords:
        name = keyword.arg or "**"
        if name in found:
            raise field_error(InputError, name, ast.unparse(keyword.value), "is given twice")
        found[name] = keyword.value
    return found


def _field(node: ast.expr, field: str) -> Any:
    """A value of a spec: a literal, `Tile(...)`, or an epilogue of the library."""
    if field == "epilogue":
        return graph_of(ast.unparse(node))
    tile = _name(node) == "Tile"
    try:
        if tile and isinstance(node, ast.Call):
            from cutegemm.spec import Tile

            named = {name: ast.literal_eval(value) for name, value in _keywords(node).items()}
            return Tile(*map(ast.literal_eval, node.args), **named)
        return ast.literal_eval(node)
    except GemmError:
        raise
    except (TypeError, ValueError) as error:
        rule = "must be Tile(m, n, k)" if tile else "must be a literal value"
        raise field_error(SpecError, field, ast.unparse(node), rule) from error


def epilogues() -> list[str]:
    """The names that `--epilogue` accepts."""
    from cutegemm.epilogue import library

    return [x for x in library.__all__ if x not in _HELPERS]


def graph_of(text: str) -> Graph | None:
    """An epilogue of the library by name, with names and numbers in parentheses, or of a Python file.

    Raises:
        InputError: there is no such epilogue.

    Example:
        >>> print(graph_of("bias_act(relu)"))
        d = relu(acc + bias)
    """
    text = text.strip()
    if not text:
        return None
    if ".py:" in text:
        return _of_file(*text.rsplit(":", 1))
    from cutegemm.epilogue import library
    from cutegemm.epilogue.hints import nearest

    plain = text.removeprefix("epi.")
    call = _call(plain if "(" in plain else f"{plain}()")
    name = plain.partition("(")[0] if call is None else _name(call)
    if call is None and name in epilogues():
        raise field_error(InputError, "--epilogue", text, "must be a name, or a call with arguments", name)
    if call is None or name not in epilogues():
        rule = f"must be FILE.py:NAME or one of {', '.join(epilogues())}"
        raise field_error(InputError, "--epilogue", text, rule, nearest(name, epilogues()))
    try:
        named = {name: _word(value) for name, value in _keywords(call).items()}
        made: Graph = getattr(library, name)(*map(_word, call.args), **named)
    except TypeError as error:
        raise field_error(InputError, "--epilogue", text, str(error)) from error
    return made


def _word(node: ast.expr) -> Any:
    """A literal, or a name without quotes as text."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _of_file(path: str, name: str) -> Graph:
    """An epilogue that a Python file defines; runs the file."""
    import runpy

    from cutegemm.epilogue.graph import Graph

    def refused(rule: str) -> InputError:
        return field_error(InputError, "--epilogue", f"{path}:{name}", rule)

    if not Path(path).is_file():
        raise refused("must name an existing Python file")
    try:
        graph = runpy.run_path(path).get(name)
        if callable(graph) and not isinstance(graph, Graph):
            graph = graph()
    except GemmError:
        raise
    # a user's file may raise anything, and may exit
    except (Exception, SystemExit) as error:
        raise refused(f"does not run: {type(error).__name__}: {error}") from error
    if not isinstance(graph, Graph):
        raise refused("must name an epilogue graph, as epi.define makes it")
    return graph
