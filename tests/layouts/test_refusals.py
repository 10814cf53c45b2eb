# SPDX-License-Identifier: Apache-2.0
"""What layouts refuse, as data: the field, its value, the nearest legal one."""

import ast
from pathlib import Path

import pytest

import cutegemm.layouts
from cutegemm.errors import SpecError
from cutegemm.layouts import algebra, banks, draw, hardware, int_tuple, tiling
from cutegemm.layouts.layout import Layout, ordered_layout, slice_
from cutegemm.layouts.swizzle import ComposedLayout, Swizzle

PLAIN = Layout((4, 8))
GAPS = Layout((4, 8), (1, 6))

# What is called, and the field, value and nearest legal value of its error.
REFUSALS = {
    "tilers": (lambda: algebra.by_mode(algebra.composition, PLAIN, (2, 2, 2)), "len(tiler)", 3, 2),
    "composed too large": (lambda: algebra.composition(PLAIN, 64), "b", Layout(64), None),
    "composed astride": (lambda: algebra.composition(GAPS, Layout(3, 3)), "b", Layout(3, 3), None),
    "complement": (lambda: algebra.complement(GAPS, 100), "layout", GAPS, None),
    "left inverse": (
        lambda: algebra.left_inverse(Layout((4, 8), (2, 3))),
        "layout",
        Layout((4, 8), (2, 3)),
        None,
    ),
    "width": (lambda: banks.access([0], 3), "width", 3, 2),
    "lanes": (lambda: banks.access([0] * 33, 4), "len(addresses)", 33, 32),
    "address": (lambda: banks.access([0, 6], 4), "addresses[1]", 6, 4),
    "table": (lambda: draw.draw_layout(Layout(4)), "layout", Layout(4), None),
    "no modes": (lambda: Layout(()), "shape", (), None),
    "no int": (lambda: Layout("x"), "shape", "x", None),
    "too small": (lambda: Layout(0), "shape", 0, 1),
    "index": (lambda: int_tuple.idx2crd(40, (4, 8)), "coordinate", 40, 31),
    "text": (lambda: int_tuple.parse("(1,2)3"), "text", "(1,2)3", "(1,2)"),
    "stride": (lambda: Layout((4, 8), (1, 2, 3)), "stride", (1, 2, 3), None),
    "mode": (lambda: PLAIN[2], "mode", 2, 1),
    "order": (lambda: ordered_layout((4, 8), (0,)), "order", (0,), None),
    "slice": (lambda: slice_(PLAIN, (0, 1, None)), "coordinate", (0, 1, None), None),
    "n": (lambda: hardware.wgmma_c_layout(12), "n", 12, 16),
    "bits": (lambda: Swizzle(-1, 4, 3), "bits", -1, 0),
    "shift": (lambda: Swizzle(3, 4, 2), "shift", 2, 3),
    "recast": (lambda: Swizzle(3, 4, 3).recast(8, 12), "new_bits", 12, None),
    "torn": (lambda: Swizzle(3, 0, 3).recast(8, 16), "new_bits", 16, 8),
    "offset": (lambda: ComposedLayout(Swizzle(3, 4, 3), -1, PLAIN), "offset", -1, 0),
    "blocks": (lambda: tiling.tile_to_shape(Layout((8, 8)), (64, 60)), "shape[1]", 60, 64),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_data(name):
    """An error of the layouts names its field, the value, the rule and, where there is one, the nearest legal value."""
    call, field, value, nearest = REFUSALS[name]
    with pytest.raises(SpecError) as e:
        call()
    assert (e.value.field, e.value.value, e.value.nearest) == (field, value, nearest)
    assert e.value.rule and str(e.value).startswith(f"{field}={value!r}: ")


def test_every_check_of_the_package_names_its_field():
    """No `check` states its fact in the rule alone."""
    for path in Path(cutegemm.layouts.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check":
                named = {keyword.arg for keyword in node.keywords}
                assert {"field", "value"} <= named, f"{path.name}:{node.lineno}"
