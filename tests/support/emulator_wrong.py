# SPDX-License-Identifier: Apache-2.0
"""The emulator's functions and what their arguments may not be: its part of the table of `tests/contract`."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy
import torch

from cutegemm import emulator
from tests.support.emulator_launch import aligned
from tests.support.wrong import NO_COUNT, NO_EXTENTS, NO_MEMORY, THING, A

KERNEL = """.version 8.8
.target sm_90a
.visible .entry k(.param .u64 p, .param .u32 n, .param .f32 f) { ret; }
"""
STEP = emulator.Step(KERNEL, (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, [bytes(8), bytes(4), bytes(4)])
LAUNCH = emulator.Launch(grid=1, block=32, params=STEP.params)
REPORT = emulator.launch(KERNEL, LAUNCH)
GEOMETRY = {"grid": NO_EXTENTS, "block": (*NO_EXTENTS, (32, 64), 1025), "cluster": (*NO_EXTENTS, 17)}

# as in tests/contract/test_arguments.py
FUNCTIONS: dict[str, tuple[Any, dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "emulator.Options": (
        emulator.Options,
        {},
        {
            "policy": ("slow", 3, None, []),
            "seed": (*NO_COUNT[:2], -1, None),
            **dict.fromkeys(("warps_per_group", "resident_ctas"), NO_COUNT),
            **dict.fromkeys(("races", "strict", "meter"), (1, None, "x")),
            "progress": (1, "x"),
            "suppressions": (1, [], b"x"),
            "max_seconds": ("x", -1.0, 1j, True),
        },
    ),
    "emulator.run_ptx": (
        emulator.run_ptx,
        {"ptx": KERNEL, "grid": 1, "block": 32, "args": [None, 3, 1.0]},
        {
            **GEOMETRY,
            "ptx": (None, 3, b"x"),
            "args": (None, 3, "x", {}, []),
            "smem": ("x", -1, 1.5, True, 1 << 20),
            "entry": (3, b"k", "other"),
            "options": (3, "lazy", {}),
        },
    ),
    **{
        f"emulator.run_ptx, args[{i}]": (
            lambda i=i, **given: emulator.run_ptx(
                KERNEL, grid=1, block=32, args=[*[None] * i, *given.values(), *[None] * (2 - i)]
            ),
            {},
            {"args": (*values, "4", THING, 1j, b"xyz", numpy.str_("a"), itertools.repeat(0), *NO_MEMORY[4:])},
        )
        for i, values in enumerate(((1 << 64, 1.5), (1 << 32, -(1 << 31) - 1, 2.5, [1, 2]), (1e300, 1 << 2000)))
    },
    "emulator.Launch": (
        emulator.Launch,
        {"grid": 1, "block": 32},
        {
            **GEOMETRY,
            "ptx": (3, b"x", [KERNEL]),
            "args": (3, "x", {}),
            "smem": ("x", -1, 1.5, True, 1 << 20),
            "smem_bytes": ("auto", None, -1, 1.5, True, 1 << 20),
            "params": (None, 3, "x", ["x"], [3]),
            "buffers": (None, 3, "x", ["x"], [A]),
            "entry": (3, b"k"),
            "pdl": (1, None, "x"),
            "shared_parts": (None, 3, "x", ("x",), (("x", 0),), ((1, 0, 16),), (("x", 0, 1.5),)),
        },
    ),
    "emulator.launch": (
        emulator.launch,
        {"kernel": KERNEL, "what": LAUNCH},
        {"kernel": (None, 3, b"x"), "what": (None, 3, {}), "options": (3, "lazy", {})},
    ),
    "emulator.run_sequence": (
        emulator.run_sequence,
        {"launches": [emulator.Launch(KERNEL, grid=1, block=32, args=[None] * 3)]},
        {
            "launches": (None, 3, "x", [None], []),
            "options": (3, "lazy", {}),
            "constant": (3, "x", [3], [A.to("meta")]),
        },
    ),
    "emulator.run_steps": (
        emulator.run_steps,
        {"steps": [STEP], "buffers": []},
        {
            "steps": (None, 3, [3]),
            "buffers": (None, 3, [A]),
            "options": (3, "lazy", {}),
            "outputs": (None, 3, "x", [A]),
        },
    ),
    **{
        f"emulator.run_steps, {name}": (
            lambda name=name, **given: emulator.run_steps([dataclasses.replace(STEP, **given)], []),
            {},
            {name: values},
        )
        for name, values in {
            **GEOMETRY, "ptx": (None, 3), "params": (None, 3, [b""], [bytes(4)] * 3),
        }.items()
    },
    "emulator.tensor_map": (
        emulator.tensor_map,
        {"array": aligned(64 * 64, numpy.float16).reshape(64, 64), "box": (64, 64)},
        {
            "array": (
                *NO_MEMORY,
                numpy.float16(1),
                numpy.zeros((), numpy.float16),
                numpy.zeros((0, 64), numpy.float16),
                aligned(64 * 64, numpy.float16).reshape(64, 64)[::-1],
                aligned(64 * 64, numpy.float16).reshape(64, 64).T,
                aligned(64, numpy.float16).reshape(2, 1, 2, 1, 2, 8),
                A.to(torch.complex64),
            ),
            "box": (None, 3, "x", ("a", 64), (1.5, 64), (64,), (0, 64), (-1, 64), (64, 257), (True, 8), (8, 1)),
            "swizzle": (16, "x", True, False, 1.0, []),
            "dtype": (3, [], "x", "f32"),
        },
    ),
    "emulator.output": (
        emulator.output,
        {"tensor": A, "name": "d"},
        {
            "tensor": NO_MEMORY,
            "name": (3, None),
            "tile": (3, "x", (), (64,), (64, 64, 64), (0, 64), (64, -1), (1.5, 64), (True, 64), ("64", 64)),
        },
    ),
    "emulator.tensor_buffer": (
        emulator.tensor_buffer, {"tensor": A, "name": "a"}, {"tensor": NO_MEMORY, "name": (3, None)},
    ),
    "emulator.Buffer": (
        emulator.Buffer,
        {"address": 64, "size": 16},
        {"address": ("x", -1, 1.5, 1 << 64), "size": ("x", -1, 1.5, 1 << 64), "name": (3, None)},
    ),
    "emulator.profile": (emulator.profile, {"report": REPORT}, {"report": (None, 3), "other": (3, "x")}),
    "emulator.compare": (
        emulator.compare, {"first": REPORT, "second": REPORT}, dict.fromkeys(("first", "second"), (None, 3)),
    ),
    "Module.parse": (emulator.Module.parse, {}, {"text": (None, 3, b"x")}),
    "Module.kernel": (
        lambda **given: emulator.Module.parse(KERNEL).kernel(*given.values()), {}, {"entry": (3, b"k", "other")},
    ),
}  # fmt: skip

# arguments that may be any array
ANY_ARRAY = {
    ("emulator.run_ptx, args[0]", "args"),
    ("emulator.tensor_map", "array"),
    ("emulator.output", "tensor"),
    ("emulator.tensor_buffer", "tensor"),
}
