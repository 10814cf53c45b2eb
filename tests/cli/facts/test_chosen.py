# SPDX-License-Identifier: Apache-2.0
"""The plan of a command with --groups is the one that `grouped_mm` runs on tensors of the same layouts."""

import dataclasses

import pytest
import torch

from cutegemm import GemmSpec
from cutegemm.cli import inputs
from cutegemm.cli.facts.chosen import chosen
from cutegemm.epilogue.graph import linear_combination
from cutegemm.ops.groups.grouped import planned
from cutegemm.running.grouped_mm import GroupedGemm
from cutegemm.running.groups import Groups

M, N, K, G = 1000, 512, 256, 4
# axis -> shapes of A and B
SHAPES = {"m": ((M, K), (G, K, N)), "n": ((G, M, K), (K, N)), "k": ((M, K), (K, N))}


def tensors(along, dtype=torch.bfloat16, majors="kn"):
    """A, B and the ends of groups, on torch's meta device."""
    a, b = (torch.empty(x, dtype=dtype, device="meta") for x in SHAPES[along])
    a = a if majors[0] == "k" else a.mT.contiguous().mT
    b = b if majors[1] == "n" else b.mT.contiguous().mT
    return a, b, torch.empty(G, dtype=torch.int32, device="meta")


@pytest.mark.parametrize("along", SHAPES)
@pytest.mark.parametrize("majors", ["kn", "kk", "mn"])
@pytest.mark.parametrize("spec", ["", "tile=(128, 64, 64)", "d_dtype='fp32'", "a_dtype='fp16'"])
def test_the_plan_is_grouped_mm_s(along, majors, spec):
    """Launches, workspace and reasons, for each axis that groups lie along."""
    asked = inputs.spec_of(spec)
    kind = torch.float16 if asked.given().get("a_dtype") else torch.bfloat16
    real = planned(*tensors(along, kind, majors), asked)
    case = inputs.case((M, N, K), spec, majors=majors, groups=G, along=along, gpu="h200")
    found = chosen(case).plan
    assert dataclasses.replace(found, spec=real.spec) == real
    assert found.why == real.why and found.why.taken is not None


EPILOGUES = {
    "bias_act(relu)": {"bias": (G, N)},
    "residual": {"residual": (M, N)},
    "swiglu": {},
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_an_epilogue_of_groups(name):
    """A bias has a row for each group; matrices have D's rows."""
    graph = inputs.graph_of(name)
    a, b, ends = tensors("m")
    named = {
        x: torch.empty(shape, dtype=torch.bfloat16, device="meta") for x, shape in EPILOGUES[name].items()
    }
    named |= {x: 1.0 for x in graph.numbers}
    real = GroupedGemm(GemmSpec(), graph).plan(a, b, Groups(offs=ends), named)
    case = inputs.case((M, N, K), epilogue=name, groups=G, gpu="h200")
    assert chosen(case).plan.steps == real.steps


@pytest.mark.parametrize(
    ("kinds", "shapes"),
    [
        (("row", "row"), ((M,), (G, N))),
        ((("block", 1, 128), ("block", 128, 128)), ((M, K // 128), (G, N // 128, K // 128))),
    ],
)
def test_scales_of_groups(kinds, shapes):
    """Scales of A lie along all rows, and each group's matrix of B has its own; all are fp32."""
    fields = f"a_dtype='fp8', b_dtype='fp8_e5m2', scale_a={kinds[0]!r}, scale_b={kinds[1]!r}"
    case = inputs.case((M, N, K), fields, majors="kk", groups=G, gpu="h200")
    a, b, ends = tensors("m", torch.float8_e4m3fn, "kk")
    scales = [torch.empty(x, device="meta") for x in shapes]
    if kinds[0] != "row":
        # scales along M and along N are contiguous
        scales = [x.mT.contiguous().mT for x in scales]
    named = dict(zip(("scale_a", "scale_b"), scales, strict=True))
    graph = case.spec.epilogue
    real = GroupedGemm(case.spec, graph).plan(a, b.to(torch.float8_e5m2), Groups(offs=ends), named)
    assert chosen(case).plan.steps == real.steps


def test_a_dense_problem_keeps_its_plan():
    """Without groups the plan is that of `build`."""
    found = chosen(inputs.case((M, N, K), gpu="h200")).plan
    assert found.multiply.groups is None and found.config.epilogue == linear_combination(False)
