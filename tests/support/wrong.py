# SPDX-License-Identifier: Apache-2.0
"""What is legal for no argument, or for none of a kind: the wrong values of `tests/contract`."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy
import torch

from cutegemm import GemmSpec
from cutegemm import epilogue as epi

A, B, C = (torch.zeros(16, 16, dtype=torch.bfloat16) for _ in range(3))
CSR = A.float().to_sparse_csr()
THING = object()


class Contrary:
    """Answers no question: neither printed, compared, hashed, counted nor decided on."""

    __hash__ = None

    def _refuse(self, *_: object) -> Any:
        raise RuntimeError("no answer")

    __eq__ = __ne__ = __bool__ = __len__ = __iter__ = __index__ = __float__ = __repr__ = __str__ = _refuse


with warnings.catch_warnings():
    # torch calls them a prototype
    warnings.simplefilter("ignore")
    NESTED = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
# legal for no argument at all, but for the array where any array goes by its pointer
STRANGERS = (numpy.array([[1, 2], [3, 4]]), NESTED, Contrary())
NO_SPEC = (None, {}, GemmSpec, "auto", 3)
NO_PROBLEM = ((1, 2, 3), {}, "64", 3)
NO_EXTENT = ("a", 1.5, None, -1, 1 << 40)
NO_DTYPE = ("float3", 7, THING)
# an array of another library is a tensor, but its type must be one of a kernel's
NO_TENSOR = (None, [[1.0]], 3, "a", numpy.zeros((16, 16), numpy.int64))
# no text of the operating system, and the home of nobody
NO_PATH = (None, 3, b"x", "", "\ud800", "a\0b", "~nobody of this name/x")
NO_GRAPH = (3, "gelu", epi.bias, THING)
# what no field of a spec is
NO_FIELD = ([], {}, math.nan, torch.ones(2), b"auto", ("m",), lambda: 0)
NO_COUNT = ("x", 1.5, 0, -1, THING)
# nor these for an array that the emulator runs on
NO_MEMORY = (None, 3, "a", [1.0], A.to_sparse(), A.to("meta"), numpy.array([THING]))
NO_EXTENTS = (*NO_COUNT, None, True, (), (1, 2, 3, 4), (1, "2"), (1, 1 << 40), range(2))
