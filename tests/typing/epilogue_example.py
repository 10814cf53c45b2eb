# SPDX-License-Identifier: Apache-2.0
"""The epilogue language as a type checker sees it: never run, `mypy --strict` accepts it (`test_typing`)."""

from cutegemm import epilogue as epi


@epi.define
def mlp(
    acc: epi.Value, *, bias: epi.Row, gain: epi.Col, residual: epi.Matrix, scale: epi.Scalar
) -> epi.Output:
    """Operators and functions on inputs and numbers give values."""
    shifted: epi.Value = bias + 1.0
    h = epi.gelu(acc * scale + shifted) * gain / 2
    kept = epi.where((h > 0.0) & ~(h == 1.0) | (1.0 < h), abs(h), -h)
    return epi.Output(
        d=kept + residual, hidden=epi.Store(h, dtype="bf16"), top=epi.AbsMax(h), rows=epi.Sum(h, axis=1)
    )


@epi.define(gated="halves")
def glu(gate: epi.Value, up: epi.Value, *, seed: epi.Integer, offset: epi.Integer) -> epi.Value:
    """A decorator with arguments, and integers."""
    return epi.dropout(epi.silu(gate) * up, 0.1, seed, offset)


gradient: epi.Graph = epi.backward(mlp, wrt=["acc"])
saving: epi.Graph = epi.with_saved(glu).transposed()
