# SPDX-License-Identifier: Apache-2.0
"""Every stage compiles for sm_90a, shows its idea in SASS, fits the multiprocessor and states its limits."""

import re

import pytest

import handwritten
from cutegemm.errors import GemmError
from cutegemm.hardware import MAX_REGISTERS, SMEM_BYTES
from handwritten.problem import Limits, contiguous
from handwritten.rung import read_constants

STAGES = handwritten.stages()
KEYS = [stage.key for stage in STAGES]
# Stages kept to show a collapse: their spills are the lesson.
SPILLING = {"17_wgmma_shapes_n256"}


def variants():
    """Each stage with each dtype and each pair of majors that it takes."""
    for stage in STAGES:
        for dtype in stage.dtypes:
            for majors in ("rr", "rc", "cr", "cc") if stage.limits.col_major else ("rr",):
                yield pytest.param(stage, dtype, majors, id=f"{stage.key}-{dtype}-{majors}")


@pytest.mark.parametrize("stage", STAGES, ids=KEYS)
def test_idea_is_in_the_sass(stage):
    """The instruction that a stage exists to show is in the code that the compiler made."""
    assert any(re.match(stage.instruction, opcode) for opcode in stage.instructions), stage.instructions


@pytest.mark.parametrize("stage, dtype, majors", list(variants()))
def test_every_variant_fits(stage, dtype, majors):
    """Each dtype and layout compiles, keeps its values in registers and leaves room for one CTA at least."""
    used = stage.resources(dtype, majors)
    assert 16 <= used.registers <= MAX_REGISTERS
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


def test_numbers_have_no_gap():
    """The ladder counts from 1 without a gap, and every .cu file is a stage."""
    numbers = [stage.number for stage in STAGES]
    assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))
    assert {path.name for path in STAGES[0].path.parent.glob("*.cu")} == {stage.file for stage in STAGES}


def test_ptx_is_for_hopper():
    """PTX comes without a GPU and targets the architecture that the CUBIN is for."""
    assert ".target sm_90a" in handwritten.stage(1).ptx


@pytest.mark.parametrize("key", ["02_coalesced", "coalesced", 2, "2"])
def test_a_stage_is_found_by_key_name_or_number(key):
    """A stage answers to its key, its bare name and its number."""
    assert handwritten.stage(key).file == "02_coalesced.cu"


def test_unknown_stage():
    """A wrong name is refused with the names that exist."""
    with pytest.raises(GemmError, match=r"stage='fast': must be one of 01_naive, 02_coalesced"):
        handwritten.stage("fast")


def test_wrong_dtype():
    """A dtype that the stage lacks is refused with those it has."""
    with pytest.raises(GemmError, match=r"dtype='bf16': stage 01_naive takes fp32"):
        handwritten.stage(1).compiled("bf16")


@pytest.mark.parametrize(
    "limits, problem, message",
    [
        (
            Limits(k=16),
            (64, 64, 40, "rr"),
            "K=40: stage s needs a positive multiple of 16; nearest legal value: 48",
        ),
        (Limits(), (0, 64, 64, "rr"), "M=0: stage s needs a positive multiple of 1; nearest legal value: 1"),
        (
            Limits(align=16),
            (64, 63, 64, "rr"),
            "B pitch=63: stage s needs multiples of 8 elements (16 bytes); nearest legal value: 64",
        ),
        (
            Limits(col_major=False),
            (64, 64, 64, "rc"),
            "B=column-major: stage s copies vectors along rows; pass a row-major B",
        ),
    ],
)
def test_limits_say_field_value_rule_and_nearest(limits, problem, message):
    """A problem outside a limit is refused with the field, its value, the rule and the nearest legal value."""
    *mnk, majors = problem
    with pytest.raises(GemmError, match=f"^{re.escape(message)}$"):
        limits.verify("s", contiguous("bf16", *mnk, majors=majors))


@pytest.mark.parametrize(
    "limits, text",
    [
        (Limits(), "none"),
        (
            Limits(n=4, k=4, align=16, col_major=False),
            "N % 4 == 0, K % 4 == 0, addresses and row pitches in multiples of 16 bytes, A and B row-major",
        ),
    ],
)
def test_limits_print(limits, text):
    """Limits print as the rules that a caller must keep."""
    assert str(limits) == text


def test_constants_come_from_the_source():
    """Tile constants are read off the source in order, and a -D overrides a #define's default."""
    source = "#define N 64\nconstexpr int BM = 128;\nconstexpr int HALF_BM = BM / 2 + N;\n"
    assert read_constants(source, {}) == {"N": 64, "BM": 128, "HALF_BM": 128}
    assert read_constants(source, {"N": 8})["HALF_BM"] == 72


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
