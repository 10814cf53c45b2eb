# SPDX-License-Identifier: Apache-2.0
"""Groups of 8-bit operands with scales of rows and of blocks: on the emulator, races on, beside fp64."""

import itertools

import pytest
import torch

import cutegemm
from cutegemm import GemmSpec, Tile, emulator
from cutegemm.errors import InputError
from cutegemm.running.numerics.group_reference import bounds
from tests.support.group_scales import close, operand, positive, wide
from tests.support.groups import Groups, drawn
from tests.support.watched import RACES

pytestmark = pytest.mark.sliced

M, N, K, G = 200, 136, 320, 4
ENDS = {"uneven": [1, 130, 130, 200], "decreasing and outside": [90, -7, 40, 1000]}
EXPONENTS = torch.arange(120, 134, dtype=torch.uint8)


SCALES = {
    "rows": lambda: (positive(M), positive(G, N)),
    "one row for all groups": lambda: (positive(M), positive(N)),
    "blocks": lambda: (positive(M, 3), positive(G, 2, 3)),
    "blocks of one for all groups": lambda: (positive(M, 3), positive(2, 3)),
    "exponents": lambda: (
        EXPONENTS[torch.randint(0, 14, (M, 3), generator=torch.Generator().manual_seed(1))],
        EXPONENTS[torch.randint(0, 14, (G, 2, 3), generator=torch.Generator().manual_seed(2))],
    ),
    "blocks of columns": lambda: (positive(M, 3), positive(G, N, 3)),
}
KERNELS = {
    "chosen": {},
    "tokens along columns": {"tile": Tile(16, 64, 128), "swap": True, "cluster": (1, 1)},
    "pingpong": {"tile": Tile(64, 64, 128), "swap": False, "cluster": (1, 1), "schedule": "pingpong"},
    "pairs": {"tile": Tile(128, 64, 128), "swap": False, "cluster": (1, 2), "sms": 4},
}


def check_rows(spec, ends, scales):
    """Every group is right to bf16's rounding, rows of no group are zeros, and the run has no findings."""
    a, b, (scale_a, scale_b) = operand(M, K), operand(G, N, K), scales
    d, ends = torch.full((M, N), 7.0).bfloat16(), torch.tensor(ends)
    run = emulator.run(Groups(spec, scale_a=scale_a, scale_b=scale_b), a, b.mT, ends, d, options=RACES)
    assert not run.findings
    each = scale_b.shape[0] == G
    told = torch.zeros(M, N, dtype=torch.double)
    left = wide(a, scale_a)
    for group, (first, end) in enumerate(itertools.pairwise(bounds(ends, M).tolist())):
        own = scale_b[group] if each else scale_b
        right = wide(b[group], own, 128 if own.dim() == 2 and own.shape[0] != N else 1)
        told[first:end] = left[first:end] @ right.T
    close(d, told)
    again = cutegemm.grouped_mm(a, b.mT, ends, scale_a=scale_a, scale_b=scale_b, fallback="reference")
    close(again, told)


@pytest.mark.parametrize("kind", SCALES)
def test_scales_of_every_kind_follow_the_groups(kind):
    """A's lie packed as its rows do, B's are those of the group; whatever the ends hold."""
    check_rows(GemmSpec(sms=3), ENDS["decreasing and outside"], SCALES[kind]())


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("kind", ["rows", "blocks"])
def test_every_kind_of_kernel_scales_groups(name, kind):
    """Whatever shares a tile, and however many k tiles a block of K is."""
    check_rows(GemmSpec(**{"sms": 3, **KERNELS[name]}), ENDS["uneven"], SCALES[kind]())


@pytest.mark.parametrize("blocks", [False, True])
def test_masked_groups_with_scales(blocks):
    """Scales lie as the batches do."""
    a, b, counts = operand(3, 80, 256), operand(3, 72, 256), torch.tensor([0, 99, 33])
    scale_a = positive(3, 80, 2) if blocks else positive(3, 80)
    scale_b = positive(3, 1, 2) if blocks else positive(3, 72)
    d = torch.full((3, 80, 72), 7.0).bfloat16()
    served = Groups(GemmSpec(sms=3), "counts", scale_a=scale_a, scale_b=scale_b)
    assert not emulator.run(served, a, b.mT, counts, d, options=RACES).findings
    for group, count in enumerate([0, 80, 33]):
        told = wide(a, scale_a)[group] @ wide(b, scale_b, 128)[group].T
        close(d[group, :count], told[:count])
        assert torch.all(d[group, count:] == 0)


@pytest.mark.parametrize("fields", [{}, {"tile": Tile(192, 88, 128), "swap": False}], ids=["chosen", "three"])
@pytest.mark.parametrize("each", [False, True])
def test_groups_along_k_with_scales_of_rows(each, fields):
    """A weight's gradient: of rows of A and columns of B, one for all groups or one each; three warpgroups, too."""
    a, b, ends = operand(72, 200), operand(136, 200), torch.tensor([50, 50, 200])
    scale_a, scale_b = (positive(3, 72), positive(3, 136)) if each else (positive(72), positive(136))
    d = torch.empty(3, 72, 136).bfloat16()
    served = Groups(GemmSpec(sms=3, **fields), scale_a=scale_a, scale_b=scale_b)
    assert not emulator.run(served, a, b.T, ends, d, options=RACES).findings
    for group, (first, end) in enumerate([(0, 50), (50, 50), (50, 200)]):
        left = wide(a, scale_a[group] if each else scale_a)[:, first:end]
        right = wide(b, scale_b[group] if each else scale_b)[:, first:end]
        close(d[group], left @ right.T)


def test_scales_with_alpha_a_bias_and_rows_by_index():
    """They are applied first; rows that indices name bring theirs."""
    a, b, ends = operand(40, K), operand(2, N, K), torch.tensor([20, 33])
    rows, bias = torch.arange(33) * 7 % 40, drawn(2, N).float()
    scale_a, scale_b = positive(40, 3), positive(2, 2, 3)
    found = cutegemm.grouped_mm(
        a, b.mT, ends, rows=rows, scale_a=scale_a, scale_b=scale_b, bias=bias, alpha=0.5, fallback="emulator"
    )
    left = wide(a, scale_a)[rows]
    for group, (first, end) in enumerate([(0, 20), (20, 33)]):
        close(found[first:end], 0.5 * left[first:end] @ wide(b[group], scale_b[group], 128).T + bias[group])


@pytest.mark.parametrize("kind", ["row", ("block", 1, 128), "tensor"], ids=str)
def test_what_is_added_has_a_gradient(kind):
    """A bias, of all groups or of each, and c; an epilogue of scaled operands is refused by their name."""
    (a, scale_a), (b, scale_b) = cutegemm.quantize(drawn(10, K), kind), cutegemm.quantize(drawn(3, N, K))
    given = {"offs": torch.tensor([4, 4, 9]), "scale_a": scale_a, "scale_b": scale_b, "fallback": "reference"}
    above, mine = drawn(10, N), (torch.arange(10) < 9)[:, None]
    for shape in ((N,), (3, N)):
        bias, c = torch.zeros(shape, requires_grad=True), torch.ones(10, N, requires_grad=True)
        cutegemm.grouped_mm(a, b.mT, bias=bias, c=c, beta=2.0, **given).backward(above)
        wanted = torch.stack([above[:4].double().sum(0), torch.zeros(N), above[4:9].double().sum(0)])
        close(bias.grad, wanted if len(shape) == 2 else wanted.sum(0))
        close(c.grad, 2.0 * above.double() * mine)
    with pytest.raises(
        InputError, match="scale_a='...': groups of scaled operands have gradients only for bias="
    ):
        cutegemm.grouped_mm(a, b.mT, bias=bias, epilogue=cutegemm.epilogue.bias_act("gelu"), **given)


REFUSED = {
    "blocks of rows of A": ({"scale_a": positive(2, 3)}, "groups may start in blocks of rows"),
    "another shape of A's": ({"scale_a": positive(M - 1)}, r"scale_a\.shape.*must be a number, \(200,\)"),
    "scales for other groups": ({"scale_b": positive(3, N)}, r"scale_b\.shape"),
    "blocks for other groups": ({"scale_b": positive(5, 2, 3)}, r"scale_b\.shape"),
    "another type": ({"scale_b": positive(G, 2, 3).bfloat16()}, r"scale_b\.dtype"),
    "a gradient": ({"scale_a": positive(M).requires_grad_()}, "no gradient"),
    "operands of 16 bits": ({"wide": True, "scale_a": positive(M)}, "scale_a"),
}


@pytest.mark.parametrize("fallback", ["reference", "emulator"])
@pytest.mark.parametrize("name", REFUSED)
def test_scales_that_cannot_be(name, fallback):
    """Refused before anything is written."""
    given, message = REFUSED[name]
    given = dict(given)
    a, b = operand(M, K), operand(G, N, K).mT
    if given.pop("wide", False):
        a, b = a.bfloat16(), b.bfloat16()
    d = torch.full((M, N), 7.0).bfloat16()
    with pytest.raises(InputError, match=message):
        cutegemm.grouped_mm(a, b, torch.tensor(ENDS["uneven"]), out=d, **given, fallback=fallback)
    assert torch.all(d == 7.0)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["rows", "blocks"])
@pytest.mark.parametrize("groups", [1, 8, 128])
@pytest.mark.parametrize("shape", [(16, 136, 256), (1000, 1536, 2048), (4096, 4096, 768)])
def test_groups_with_scales_on_the_gpu(shape, groups, kind):
    """The planner's kernels, with every ends that are drawn."""
    m, n, k = shape
    draw = torch.Generator("cuda").manual_seed(m + groups)
    a, b = (torch.randn(x, generator=draw, device="cuda") for x in ((m, k), (groups, n, k)))
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    blocks = k // 128
    shapes = ((m,), (groups, n)) if kind == "rows" else ((m, blocks), (groups, -(-n // 128), blocks))
    scale_a, scale_b = (torch.rand(x, generator=draw, device="cuda") + 0.5 for x in shapes)
    for _ in range(2):
        ends = torch.randint(0, m + 1, (groups,), generator=draw, device="cuda").sort().values
        d = cutegemm.grouped_mm(a, b.mT, ends, scale_a=scale_a, scale_b=scale_b, fallback="error")
        left = wide(a, scale_a)
        for group, (first, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
            close(d[first:end], left[first:end] @ wide(b[group], scale_b[group], 128).T)
        assert torch.all(d[int(ends[-1]) :] == 0)
