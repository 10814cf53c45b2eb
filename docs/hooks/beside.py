# SPDX-License-Identifier: Apache-2.0
"""The DSL beside the ladder: a stage's `GemmSpec`, and the code of the library that does the same.

Code is taken from the sources by name when the site is built. A name that no longer exists ends the build.
"""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import fields
from pathlib import Path

from handwritten.ladder.names import twin_name
from handwritten.ladder.registry import stages
from handwritten.ladder.twins import knobs

ROOT = Path(__file__).parents[2]
# stage -> (file below cutegemm/, name in it, what to look for)
CODE: dict[int, tuple[tuple[str, str, str], ...]] = {
    1: (
        (
            "kernels/load/gather_load.py",
            "",
            "The general kernel still loads single elements where strides allow nothing else.",
        ),
    ),
    2: (
        (
            "kernels/cuda_cores/simt_tile.py",
            "TileShape.place",
            "Which element a thread of the fp32 kernel copies: neighbours along the unit stride.",
        ),
    ),
    3: (
        (
            "kernels/cuda_cores/simt_staged.py",
            "StagedLoad.commit",
            "Registers to shared memory: the second half of the copy.",
        ),
    ),
    4: (("kernels/cuda_cores/simt_tile.py", "Owned", "The rows or columns of a tile that a thread owns."),),
    5: (
        (
            "kernels/cuda_cores/simt_staged.py",
            "StagedLoop._tile",
            "The outer product of two register fragments, one k at a time.",
        ),
    ),
    6: (
        (
            "kernels/cuda_cores/simt_staged.py",
            "StagedShape.pad",
            "Padding of the transposed tile, computed from the copy's lanes.",
        ),
        ("kernels/cuda_cores/simt_staged.py", "_read", "A vector load from shared memory."),
    ),
    7: (
        (
            "kernels/cuda_cores/simt_tile.py",
            "Owned.groups",
            "A thread's rows in groups of four, so that a warp's load is contiguous.",
        ),
    ),
    8: (
        (
            "kernels/cuda_cores/simt_ring.py",
            "RingLoop.multiply",
            "The fp32 mainloop over a pipeline of stages: wait, multiply, load ahead.",
        ),
    ),
    9: (
        (
            "layouts/hardware.py",
            "wgmma_c_layout",
            "With `wgmma` the owner of each element is defined; with `wmma` it is not.",
        ),
    ),
    10: (
        (
            "kernels/epilogue/subtiles.py",
            "to_shared",
            "Registers to shared memory by `stmatrix`, the counterpart of `ldmatrix`.",
        ),
    ),
    11: (
        ("kernels/load/cp_async_load.py", "copy_chunk", "One `cp.async`, zero-filled beyond the edge."),
        ("kernels/epilogue/output_store.py", "_store_elements", "Staged rows of D to global memory."),
    ),
    12: (
        (
            "kernels/schedule/tile_scheduler.py",
            "tile_of",
            "The panels: from a tile's number to its place in D.",
        ),
    ),
    13: (
        (
            "kernels/load/cp_async_load.py",
            "AsyncLoad",
            "Edges without TMA: the bytes that are read are counted, the rest is zero.",
        ),
    ),
    14: (("layouts/swizzle.py", "Swizzle", "The XOR swizzle as a function of an offset."),),
    15: (("kernels/mainloop/pipeline.py", "Pipeline", "Full and empty barriers of a pipeline."),),
    16: (
        (
            "kernels/multistage.py",
            "MultistageGemm._multiply",
            "The same loop with any number of stages; with one it is this stage's loop.",
        ),
    ),
    17: (
        (
            "kernels/mainloop/mainloop.py",
            "multiply_stage",
            "One stage's `wgmma` instructions; the CTA tile fixes the shape of the instruction.",
        ),
    ),
    18: (
        (
            "kernels/mainloop/producer.py",
            "Producer._fill_next",
            "The producer: wait until a stage is empty, fill it.",
        ),
        (
            "kernels/mainloop/mainloop.py",
            "Mainloop.multiply",
            "A consumer: wait until a stage is full, multiply, release the one before.",
        ),
    ),
    19: (
        (
            "kernels/epilogue/output_store.py",
            "TileStores.store",
            "The epilogue's store: directly, staged by threads, or by TMA.",
        ),
    ),
    20: (
        ("kernels/schedule/tile_scheduler.py", "TileScheduler.next", "Persistence: the CTA's next tile."),
        ("kernels/load/tma_load.py", "TmaLoad._issue", "A load that may be a multicast."),
        (
            "kernels/mainloop/pipeline.py",
            "Pipeline.release",
            "A consumer warp arrives at every CTA that writes into its own.",
        ),
    ),
    21: (
        (
            "kernels/split_k/atomic_sum.py",
            "AtomicSum",
            "Splits of K that add into one tile in order of arrival.",
        ),
    ),
    22: (
        (
            "kernels/split_k/deferred_sum.py",
            "DeferredSum",
            "The first launch leaves partial sums in workspace.",
        ),
        (
            "kernels/split_k/add_partials.py",
            "AddPartials.kernel",
            "The second launch reduces them and applies the epilogue.",
        ),
    ),
}


def excerpt(path: Path, name: str) -> str:
    """The source of a function, a method or a class with what stands above it; of no name the file's docstring."""
    text = path.read_text()
    found: ast.AST = ast.parse(text)
    if not name:
        return f'"""{ast.get_docstring(found)}\n"""'  # type: ignore[arg-type]
    for part in name.split("."):
        found = next(x for x in found.body if getattr(x, "name", "") == part)  # type: ignore[attr-defined]
    first = min([found.lineno, *(x.lineno for x in found.decorator_list)])  # type: ignore[attr-defined]
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : found.end_lineno]))  # type: ignore[attr-defined]


def spec(key: str) -> str:
    """The spec of a stage's twin as Python, types left out; empty for a stage without one."""
    found = knobs().get(twin_name(key))
    if found is None:
        return ""
    given = {x.name: getattr(found, x.name) for x in fields(found) if not x.name.endswith("dtype")}
    shown = ", ".join(f"{name}={value!r}" for name, value in given.items() if value not in ("auto", None))
    return "GemmSpec(" + re.sub(r"Tile\(m=(\d+), n=(\d+), k=(\d+)\)", r"Tile(\1, \2, \3)", shown) + ")"


def section(stem: str) -> str:
    """The section of a stage's page: its twins, and the library's code."""
    number = int(stem[:2])
    keys = [x.key for x in stages() if x.number == number]
    twins = [f"# {key}\n{spec(key)}" for key in keys if spec(key)]
    out = ["## The same in the DSL\n"]
    if twins:
        out += [
            "The stage's twin is a spec. It has the same CTA tile, stages, order of CTAs and store:\n",
            "```python\n" + "\n".join(textwrap.fill(x, 100, subsequent_indent="         ")
                                      if not x.startswith("#") else x for t in twins for x in t.split("\n"))
            + "\n```\n",
        ]  # fmt: skip
    else:
        out.append("This stage has no spec of its own. The library's kernels contain its idea:\n")
    for file, name, what in CODE[number]:
        shown = f"{name} in cutegemm/{file}" if name else f"cutegemm/{file}"
        code = excerpt(ROOT / "cutegemm" / file, name)
        body = "".join(f"    {x}\n" if x else "\n" for x in f"```python\n{code}\n```".splitlines())
        out.append(f'{what}\n\n??? example "{shown}"\n\n{body}')
    return "\n".join(out)
