# SPDX-License-Identifier: Apache-2.0
"""Scalar floating point against results recorded on an H200: exact instructions to the last bit, approximate ones
within the error the PTX ISA documents."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import emulator_scalars as scalars
from benchmarks.emulator_probes import HEADER
from benchmarks.emulator_record import BLOCK, LANES, SEED, digest, digests
from tests.support.emulator_fixtures import recorded, run_probe

RECORDED = recorded("scalar.npz")


def emulated(probe: scalars.Probe, lanes: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The emulator's results, and the operands, after checking that these are the recorded ones."""
    operands = scalars.operands(probe, lanes, SEED)
    assert (digest(*operands) == RECORDED[probe.op + "/inputs"]).all(), (
        "the operands have changed: record again"
    )
    result = np.empty(lanes, scalars.UINT[scalars.BITS[probe.result]])
    return run_probe(
        scalars.module([probe]), probe.name, lanes // BLOCK, BLOCK, [result, *operands]
    ), operands


@pytest.mark.parametrize("op", scalars.EXACT)
def test_exact_instructions_are_the_hardwares(op):
    """Every pair of edges and random operands give the recorded bits, NaNs and signs of zeros included."""
    result, _ = emulated(scalars.EXACT[op], LANES[True])
    wrong = np.flatnonzero((digests(result.reshape(-1, BLOCK)) != RECORDED[op]).any(1))
    assert not len(wrong), f"blocks of {BLOCK} elements that differ: {wrong.tolist()}"


UNIFORM = ("neg.f32", "add.rn.f32", "fma.rn.f32", "mul.rn.sat.f32", "mul.rn.ftz.f32", "min.NaN.f32", "add.rn.f64",
           "fma.rn.f64", "abs.f64", "add.rn.f16", "fma.rn.relu.bf16", "cvt.rn.f16.f64", "cvt.rna.tf32.f32",
           "cvt.rni.s64.f32", "setp.geu.f32", "cvt.rz.f32.s64")  # fmt: skip


@pytest.mark.parametrize("op", UNIFORM)
def test_uniform_operands_give_the_bits_vectors_give(op):
    """The emulator keeps uniform registers as Python numbers; immediates take that path."""
    probe, count = scalars.EXACT[op], 64
    want, operands = emulated(probe, LANES[True])
    registers = {16: ("b16", "%rs"), 32: ("b32", "%r"), 64: ("b64", "%rd")}
    bits = scalars.BITS[probe.result]
    kind, prefix = registers[bits]
    body = (
        f"{HEADER}.visible .entry k(.param .u64 p0) {{\n .reg .pred %p<2>; .reg .b16 %rs<9>; .reg .b32 %r<9>;"
    )
    body += " .reg .b64 %rd<9>; ld.param.u64 %rd8, [p0];\n"
    text = probe.text or f"{op} {', '.join('{' + x + '}' for x in 'dabc'[: len(operands) + 1])};"
    for i in range(count):
        names = {"d": prefix + "7"}
        for j, (x, source) in enumerate(zip(operands, probe.operands, strict=True)):
            move, register = registers[scalars.BITS[source]]
            names["abc"[j]] = f"{register}{j}"
            body += f" mov.{move} {register}{j}, {int(x[i])};"
        body += f" {text.format(**names)} st.global.{kind} [%rd8+{i * bits // 8}], {prefix}7;\n"
    got = run_probe(body + " ret;\n}\n", "k", 1, 32, [np.empty(count, want.dtype)])
    assert got.tolist() == want[:count].tolist()


ULP, RELATIVE, ABSOLUTE = "ulp", "relative", "absolute"
DOCUMENTED = {  # PTX ISA 9.0, 9.7.3 and 9.7.4: the greatest error against the exact result
    "ex2.approx.f32": (ULP, 2), "lg2.approx.f32": (RELATIVE, 2.0**-22), "rcp.approx.f32": (ULP, 1),
    "sqrt.approx.f32": (RELATIVE, 2.0**-23), "rsqrt.approx.f32": (RELATIVE, 2.0**-22.9),
    "sin.approx.f32": (ABSOLUTE, 2.0**-20.5), "cos.approx.f32": (ABSOLUTE, 2.0**-20.5),
    "tanh.approx.f32": (RELATIVE, 2.0**-11), "div.approx.f32": (ULP, 2), "div.full.f32": (ULP, 2),
    "ex2.approx.f16": (RELATIVE, 2.0**-9.9), "tanh.approx.f16": (ABSOLUTE, 2.0**-10.987),
    "ex2.approx.bf16": (RELATIVE, 2.0**-7), "tanh.approx.bf16": (ABSOLUTE, 2.0**-8),
}  # fmt: skip
EXACTLY = {"ex2": np.exp2, "lg2": np.log2, "rcp": lambda x: 1 / x, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
           "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "div": lambda a, b: a / b}  # fmt: skip
LEAST = {"f32": 2.0**-126, "f16": 2.0**-14, "bf16": 2.0**-126}  # normal numbers
FRACTION = {"f32": 23, "f16": 10, "bf16": 7}


def values(x: np.ndarray, kind: str) -> np.ndarray:
    """fp64 values of bit patterns; pairs are laid out one after the other."""
    base = kind.removesuffix("x2")
    if base != kind:
        x = x.view(np.uint16)
    if base == "bf16":
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.view({"f16": np.float16, "f32": np.float32}[base]).astype(np.float64)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("op", scalars.APPROXIMATE)
def test_approximate_functions_are_within_their_documented_error(op):
    """So is the hardware, which shows that the documentation is read right; both agree on infinities and NaNs."""
    probe = scalars.APPROXIMATE[op]
    got, operands = emulated(probe, LANES[False])
    kind = probe.result.removesuffix("x2")
    inputs = [values(x, k) for x, k in zip(operands, probe.operands, strict=True)]
    if "ftz" in op and kind == "f32":
        inputs = [np.where(np.abs(x) < LEAST[kind], np.copysign(0, x), x) for x in inputs]
    exact = EXACTLY[op.split(".")[0]](*inputs)
    how, bound = DOCUMENTED[f"{'.'.join(op.split('.')[:2])}.{kind}"]
    error = {
        ULP: bound * 2.0 ** (np.frexp(exact)[1] - 1 - FRACTION[kind]),
        RELATIVE: bound * np.abs(exact),
        ABSOLUTE: np.full(exact.shape, bound),
    }[how]
    if op.startswith("lg2"):
        error = np.where((inputs[0] > 0.5) & (inputs[0] < 2), 2.0**-22, error)
    counted = np.isfinite(exact) & ((how == ABSOLUTE) | (np.abs(exact) >= LEAST[kind]))
    # No overflow.
    counted &= np.abs(exact) < 2.0 ** (16 if kind == "f16" else 128) * (1 - 2.0 ** -(FRACTION[kind] + 2))
    if op.startswith(("sin", "cos")):
        counted &= np.abs(inputs[0]) <= 2 * np.pi
    if op.startswith("div.approx"):
        counted &= (np.abs(inputs[1]) >= 2.0**-126) & (np.abs(inputs[1]) <= 2.0**126)
    assert counted.sum() > LANES[False] // 16
    hardware, ours = (values(x, probe.result) for x in (RECORDED[op], got))
    for who, x in (("hardware", hardware), ("emulator", ours)):
        assert (np.abs(x - exact)[counted] <= error[counted]).all(), who
    odd = ~(np.isfinite(hardware) & np.isfinite(ours))
    assert np.array_equal(hardware[odd], ours[odd], equal_nan=True)
