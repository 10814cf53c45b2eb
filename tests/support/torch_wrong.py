# SPDX-License-Identifier: Apache-2.0
"""What torch's doors do not take: rows of the table of `tests/contract`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch

import cutegemm
from cutegemm import epilogue as epi
from cutegemm import nn
from tests.support.wrong import CSR, NO_DTYPE, NO_EXTENT, NO_GRAPH, NO_TENSOR, A, B

SCALAR, SPARSE, WIDE, COMPLEX = torch.zeros(()), A.to_sparse(), A.double(), A.to(torch.complex64)
COMPRESSED = (CSR, A.float().to_sparse_csc())
E4M3 = torch.zeros(128, 128).to(torch.float8_e4m3fn)
NO_OUT = (3, "x", numpy.zeros((16, 16), numpy.float32), SCALAR, SPARSE, A[:3].clone())
NO_MATRIX = (3, "x", SCALAR, SPARSE, WIDE, COMPLEX, A[:3], A[:1])


def converted(**options: Any) -> Any:
    """`convert` of a model, or of what is given for one."""
    return nn.convert(**{"model": torch.nn.Sequential(torch.nn.Linear(4, 4)), **options})


# as of `tests/contract`
FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "grouped_mm": (
        cutegemm.grouped_mm,
        {"a": A, "b": B[None], "offs": torch.tensor([16]), "fallback": "reference"},
        {
            "a": (*NO_TENSOR[:4], *COMPRESSED),
            "b": (*NO_TENSOR[:4], *COMPRESSED),
            "offs": NO_TENSOR[:4],
            "cu_seqlens": NO_TENSOR[1:4],
            "counts": NO_TENSOR[1:4],
            "c": NO_TENSOR[1:4],
            "alpha": ("2", None, [1.0], 1j),
            "beta": ("2", [1.0], 1j),
            "bias": NO_TENSOR[1:4],
            "out": NO_TENSOR[1:4],
            "out_dtype": NO_DTYPE,
            "rows": NO_TENSOR[1:4],
            "scatter": NO_TENSOR[1:4],
            "weight": NO_TENSOR[1:4],
            "tail": ("none", 3, None),
            "spec": ({}, 3),
            "epilogue": (3, "gelu"),
            "fallback": ("eager", 3, None),
            "unheard": (1.0,),
        },
    ),
    "grouped_mm, weighed": (
        cutegemm.grouped_mm,
        {"a": A, "b": B[None], "offs": torch.tensor([16]), "c": A, "weight": torch.zeros(16)},
        {
            "a": (*NO_TENSOR[:4], *COMPRESSED, COMPLEX),
            "alpha": ("2", None, [1.0], 1j, torch.ones(2)),
            "beta": ("2", [1.0], 1j, torch.ones(2)),
            "out": NO_OUT,
            "out_dtype": (*NO_DTYPE, torch.int32),
            "rows": (*NO_TENSOR[1:4], A[0]),
            "scatter": (*NO_TENSOR[1:4], A[0]),
            "weight": (*NO_TENSOR[1:4], A, CSR),
        },
    ),
    **{
        f"{name} of fp8": (
            getattr(cutegemm, name),
            {x: E4M3 if name == "linear" else E4M3.t() for x in operands} | {"scale_a": 1.0, "scale_b": 1.0},
            dict.fromkeys((*operands, "scale_a", "scale_b"), ("x", CSR, COMPLEX)),
        )
        for name, operands in (("matmul", ("a", "b")), ("linear", ("x", "weight")))
    },
    **{
        f"nn.{kind.__name__}": (kind, {x: 16 for x in widths} | more, {
            **dict.fromkeys(widths, NO_EXTENT), "fallback": (None, 3, "eager"), **wrong,
        })
        for kind, widths, more, wrong in (
            (nn.Linear, ("in_features", "out_features"), {}, {"bias": ("x", 1.5), "constant_weights": (1, None, "x")}),
            (nn.MLP, ("in_features", "hidden_features"), {}, {"activation": ("gelo", None, [], 3)}),
            (nn.SwiGLU, ("in_features", "hidden_features"), {}, {"constant_weights": (1, None, "x")}),
            (nn.MoE, ("hidden", "intermediate", "experts"), {"top_k": 2}, {"top_k": ("x", 0, 17, 1.5, None)}),
        )
    },
    "Groups": (
        cutegemm.Groups,
        {"offs": torch.tensor([16])},
        {"offs": (None, 3, "x", [16]), "rows": (3, "x", [0]), "tail": ("none", 3, None)},
    ),
    "quantize": (
        cutegemm.quantize,
        {"x": A},
        {
            "x": (*NO_TENSOR, SCALAR, SPARSE, WIDE, COMPLEX),
            "kind": ("column", 3, None, ("block", 1), [["block", 1, 128]], torch.zeros(2)),
            "dtype": ("bf16", "uint8", None, *NO_DTYPE),
            "scale": ("x", 3.0, SPARSE, A[0], A[:3].float()),
            "transposed": (1, None, "x"),
            "scale_dtype": (torch.float16, "x", 3, None),
            "unheard": (1.0,),
        },
    ),
    "dequantize": (
        cutegemm.dequantize,
        {"values": A.to(torch.int8), "scale": torch.ones(16)},
        {
            "values": (*NO_TENSOR, SCALAR, A),
            "scale": (None, "x", 3.0, SPARSE, A[0], A.float()),
            "kind": ("column", 3, None, ("block", 1)),
            "dtype": ("fp8", "int8", None, *NO_DTYPE),
        },
    ),
    "nn.convert": (
        converted,
        {},
        {
            "model": (None, 3, [torch.nn.Linear(4, 4)], torch.nn.Linear),
            "skip": (None, 3, (3,), "absent", {"0": 1}),
            "swiglu": (None, 3, (1,), torch.nn.Linear, [torch.nn.GELU], [int]),
            "joined": (None, 3, "q", ["qk"], [3], [(3, 4)], [("q", "k")], [("0",)]),
            "fallback": (None, 3, "eager"),
            "constant_weights": (None, 1, "x"),
            "weights": ("bf16", 8, torch.int8, ["fp8"]),
            "activations": ("int8", "bf16", 8, torch.int8),
        },
    ),
    **{
        f"{name} by {how}": (
            getattr(cutegemm, name),
            {x: A if name == "linear" else B for x in operands} | {"fallback": how},
            {
                operands[0]: (WIDE, COMPLEX, SPARSE, SCALAR, *COMPRESSED),
                operands[1]: (WIDE, COMPLEX, SPARSE, SCALAR, *COMPRESSED),
                addend: NO_MATRIX,
                "out": NO_OUT,
                "epilogue": ("auto", *NO_GRAPH),
            },
        )
        for how in ("torch", "reference", "emulator")
        for name, operands, addend in (("matmul", ("a", "b"), "c"), ("linear", ("x", "weight"), "bias"))
    },
    **{
        f"{name} and residual by {how}": (
            getattr(cutegemm, name),
            {x: A for x in operands} | {"fallback": how, "epilogue": epi.residual(), "residual": A},
            {"residual": NO_MATRIX, "out": NO_OUT},
        )
        for how in ("torch", "reference")
        for name, operands in (("matmul", ("a", "b")), ("linear", ("x", "weight")))
    },
    "problem of tensors": (
        cutegemm.problem,
        {"m": 16, "n": 16, "k": 16},
        dict.fromkeys(("a", "b"), (3, "x", SCALAR, SPARSE, WIDE, A[:3], A.to_sparse_csr())),
    ),
    "tune on": (
        cutegemm.tune,
        {"spec": cutegemm.GemmSpec(), "problems": []},
        {"bench": (3, "cuda"), "regime": (3, "fast"), "console": (3, "x"), "again": (1, None)},
    ),
}  # fmt: skip
