# SPDX-License-Identifier: Apache-2.0
"""The two functions of the CUDA runtime that kernels call: vprintf (device printf) and __assertfail.

Source: CUDA programming guide, formatted output and assertion; PTX interoperability guide, 6.
"""

from __future__ import annotations

import re
import struct

import numpy as np

from cutegemm.emulator.numbers.types import Mask
from cutegemm.emulator.numbers.values import lane_of
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.memory import Fault
from cutegemm.emulator.units.access import load

_FORMAT = re.compile(r"%[-+ #0]*(?:\d+)?(?:\.\d+)?(?P<size>hh|h|ll|l|z|j|t)?(?P<kind>[diouxXcsfFeEgGaAp%])")
_SIGNED, _FLOATS = "dic", "fFeEgGaA"
LONGEST = 1 << 16  # bytes of a string that may lack its zero byte


def _argument(group: WarpSet, lane: int, place: int, size: int = 8) -> int:
    """One lane's argument of a call, in local memory."""
    only = np.arange(group.lanes) == lane
    (value,) = load(group, only, np.full(group.lanes, place, np.uint64), size, 1, "local", "")
    return lane_of(value, lane)


def _string(group: WarpSet, address: int) -> str:
    """A zero-terminated string in global memory."""
    region = group.device.memory.find_all(address, 1, "a string")
    start = address - region.base
    raw = region.data[start : min(region.size, start + LONGEST)].tobytes()
    return str(raw.split(b"\0")[0], "utf-8", "replace")


def vprintf(group: WarpSet, m: Mask, format_at: int, values_at: int, result_at: int | None) -> None:
    """vprintf(format, values), lane by lane."""
    for lane in group.active(m).tolist():
        text = _string(group, _argument(group, lane, format_at))
        pointer = _argument(group, lane, values_at)
        printed = _formatted(group, lane, text, pointer)
        group.device.printed.append(printed)
        print(printed, end="")
    if result_at is not None:
        group.local.data[(group.local_bases(None) + np.uint64(result_at)).astype(np.int64)] = 1


def _formatted(group: WarpSet, lane: int, text: str, pointer: int) -> str:
    """The formatted text; its values are aligned to their sizes from a generic address on."""
    only = np.arange(group.lanes) == lane
    at = pointer

    def value(m: re.Match[str]) -> str:
        nonlocal at
        kind, wide = m["kind"], m["size"] in ("l", "ll", "z", "j", "t")
        if kind == "%":
            return "%"
        size = 8 if wide or kind in _FLOATS or kind in "sp" else 4
        at = -(-at // size) * size
        (raw,) = load(group, only, np.full(group.lanes, at, np.uint64), size, 1, "generic", "")
        bits = lane_of(raw, lane).to_bytes(size, "little")
        at += size
        form = re.sub(r"hh|h|ll|l|z|j|t", "", m[0])
        if kind in _FLOATS:
            return str(form % struct.unpack("<d", bits))
        number = int.from_bytes(bits, "little", signed=kind in _SIGNED)
        if kind == "s":
            return form % _string(group, number)
        if kind == "p":
            return f"{number:#x}"
        return form.replace("c", "s") % chr(number & 255) if kind == "c" else form.replace("u", "d") % number

    return _FORMAT.sub(value, text)


def assertfail(group: WarpSet, m: Mask, message: int, file: int, line: int, function: int) -> None:
    """__assertfail(message, file, line, function, size): a failed device assertion stops the kernel."""
    lane = int(group.active(m)[0])
    text, path, name = (_string(group, _argument(group, lane, at)) for at in (message, file, function))
    raise Fault(
        f"{path}:{_argument(group, lane, line, 4)}: {name}: assertion `{text}` failed, lane {lane % 32}"
    )
