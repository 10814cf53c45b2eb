# SPDX-License-Identifier: Apache-2.0
"""Resources are read right off a CUBIN, and occupancy follows the multiprocessor's own arithmetic."""

import pytest

import handwritten
from cutegemm.errors import CompileError
from handwritten.ladder.resources import instruction_mix, occupancy, read_resources


@pytest.mark.parametrize(
    "registers, threads, smem, expected",
    [
        (32, 1024, 0, (2, "registers")),
        (24, 256, 0, (8, "warps")),
        (255, 128, 0, (2, "registers")),
        (168, 384, 231_424, (1, "registers")),
        (40, 128, 49_152, (4, "shared memory")),
        (16, 32, 0, (32, "CTA slots")),
        (128, 384, 120_000, (1, "registers")),
    ],
)
def test_occupancy(registers: int, threads: int, smem: int, expected: tuple[int, str]) -> None:
    """CTAs per SM is the smallest of what registers, shared memory, warps and slots allow."""
    assert occupancy(registers, threads, smem) == expected


def test_static_shared_memory_is_exact() -> None:
    """Shared memory is what the source declares: two 32 x 32 fp32 tiles."""
    assert handwritten.stage("smem_tile").resources().smem == 2 * 32 * 32 * 4


def test_no_shared_memory() -> None:
    """A kernel without shared memory uses none."""
    assert handwritten.stage("naive").resources().smem == 0


def test_kernels_of_one_cubin_are_told_apart() -> None:
    """A CUBIN of two kernels gives each its own registers and shared memory."""
    stage = handwritten.stage("split_k_workspace")
    cubin = stage.compiled().cubin
    gemm, reduce = (read_resources(cubin, name, 384, 0) for name in ("gemm", "reduce"))
    assert gemm.registers > reduce.registers and gemm.smem > reduce.smem == 0
    assert stage.resources().registers == gemm.registers


def test_unknown_kernel() -> None:
    """A CUBIN without the kernel is refused with the kernels it has."""
    with pytest.raises(CompileError, match=r"kernel='none': not in the CUBIN; it holds \['gemm'\]"):
        read_resources(handwritten.stage(1).compiled().cubin, "none", 128, 0)


def test_instruction_mix_counts_predicated_opcodes_and_stops_at_the_kernel() -> None:
    """Opcodes are counted with their modifiers, predicates stripped, padding and other kernels left out."""
    sass = (
        "\t.section\t.text.gemm\n.text.gemm:\n"
        "        /*0000*/                   LDG.E.128 R4, desc[UR4][R2.64] ;\n"
        "        /*0010*/              @!P0 FFMA R1, R2, R3, R1 ;\n"
        "        /*0020*/             @!UP0 FFMA R1, R2, R3, R1 ;\n"
        "        /*0030*/                   NOP;\n"
        "\n//--------------------- .text.reduce --------------------------\n.text.reduce:\n"
        "        /*0000*/                   FADD R1, R2, R3 ;\n"
    )
    assert instruction_mix(sass, "gemm") == {"LDG.E.128": 1, "FFMA": 2}
