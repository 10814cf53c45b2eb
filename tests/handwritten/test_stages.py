# SPDX-License-Identifier: Apache-2.0
"""Every stage compiles for sm_90a, shows its idea in SASS, fits the multiprocessor and states its limits."""

import re

import pytest

import handwritten
from cutegemm.arch.sm90 import LIMITS, SMEM_BYTES
from tests.support.ladder_variants import variants

STAGES = handwritten.stages()
KEYS = [stage.key for stage in STAGES]
# Stages kept to show a collapse: their spills are the lesson.
SPILLING = {"17_wgmma_shapes_n256"}


@pytest.mark.sliced
@pytest.mark.parametrize("stage", STAGES, ids=KEYS)
def test_idea_is_in_the_sass(stage):
    """The instruction that a stage exists to show is in the code that the compiler made."""
    assert any(re.match(stage.instruction, opcode) for opcode in stage.instructions), stage.instructions


@pytest.mark.sliced
@pytest.mark.parametrize(
    "stage, dtype, majors",
    [
        pytest.param(stage, dtype, majors, id=f"{stage.key}-{dtype}-{majors}")
        for stage in STAGES
        for dtype, majors in variants(stage)
    ],
)
def test_every_variant_fits(stage, dtype, majors):
    """Each dtype and layout compiles, keeps its values in registers and leaves room for one CTA at least."""
    used = stage.resources(dtype, majors)
    assert 16 <= used.registers <= LIMITS.registers_per_thread
    assert used.smem <= SMEM_BYTES
    assert used.ctas_per_sm >= 1
    if stage.key not in SPILLING:
        assert used.stack == 0, used
    else:
        assert used.stack > 0


@pytest.mark.parametrize("stage", STAGES, ids=KEYS)
def test_header_says_what_the_reader_needs(stage):
    """A header has licence, title, idea, change, measurement and source, in that order."""
    lines = stage.source.splitlines()
    assert lines[0] == "// SPDX-License-Identifier: Apache-2.0"
    assert lines[1].startswith(f"// Stage {stage.number:02}, ")
    header = stage.source.split("#include")[0]
    places = [header.find(f"\n// {word} ") for word in ("Idea", "Changes", "Measured", "Answers")]
    assert -1 not in places and places == sorted(places), places


@pytest.mark.parametrize("key", [key for key in KEYS if "16" <= key[:2] and key not in SPILLING])
def test_wgmmas_of_a_tile_are_in_flight_together(key):
    """Only the last of a tile's four (or more) wgmmas is waited for; ptxas serialises them when it must."""
    lines = [line for line in handwritten.stage(key).sass.splitlines() if "HGMMA" in line]
    waited = [line for line in lines if "gsb0" in line]
    assert waited
    assert len(lines) >= 4 * len(waited)


@pytest.mark.parametrize("key", [key for key in KEYS if "15" <= key[:2] <= "20"])
def test_no_gpu_wide_fence_in_the_loop(key):
    """Handing slots back costs no fence: none lies between the first tensor-core instruction and the last."""
    opcodes = re.findall(r"HG?MMA|MEMBAR\.\w+\.\w+", handwritten.stage(key).sass)
    multiplies = [i for i, opcode in enumerate(opcodes) if "MMA" in opcode]
    assert "MEMBAR.ALL.GPU" not in opcodes[multiplies[0] : multiplies[-1]]


def opcodes(key):
    """The main kernel's SASS opcodes in program order."""
    return re.findall(
        r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", handwritten.stage(key).sass, re.M
    )


def test_pipelined_loop_is_multiplications_and_shared_loads():
    """From the first shared-memory load of stage 08's tile to the last, hardly anything else is issued."""
    code = opcodes("pipelined")
    loads = [place for place, name in enumerate(code) if name == "LDS.128"]
    loop = code[loads[0] : loads[-1]]
    other = [name for name in loop if name not in ("FFMA", "LDS.128")]
    assert len(loads) == 192 and len(other) < 0.01 * len(loop), other


@pytest.mark.parametrize("key", ["wmma_any_shape", "mma_sync"])
def test_vectors_inside_the_matrix_are_copied_without_guards(key):
    """Beside the copies that zero-fill there are plain ones, which most of a matrix takes."""
    copies = [name for name in opcodes(key) if name.startswith("LDGSTS")]
    assert any("ZFILL" in name for name in copies) and any("ZFILL" not in name for name in copies)


def test_c_is_asked_for_before_the_first_product():
    """Stage 19 has its 16 loads of C under way before the main loop, and none after it."""
    code = opcodes("staged_epilogue")
    first = next(place for place, name in enumerate(code) if name.startswith("HGMMA"))
    wide = [place < first for place, name in enumerate(code) if name.startswith("LDG.E.128")]
    assert wide == [True] * 16
