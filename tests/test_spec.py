# SPDX-License-Identifier: Apache-2.0
"""What a GemmSpec accepts, how it prints, and the wording of every refusal."""

import copy
import dataclasses
import inspect
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given

import cutegemm
from cutegemm import DType, GemmSpec, Tile, nn
from cutegemm import epilogue as epi
from cutegemm.arch.instructions import partners
from cutegemm.epilogue import linear_combination
from cutegemm.errors import GemmError, SpecError
from tests.support.strategies import specs

DTYPE_RULE = "must be one of fp16, bf16, fp32, fp8_e4m3, fp8_e5m2, int8, uint8, int32"
CLUSTER_RULE = (
    "must be (m, n) or (m, n, k), m and n powers of two, of at most 8 CTAs; nearest legal value: (2, 1)"
)
RASTER_RULE = 'must be ("m" or "n", group) with a group from 1 to 4096; nearest legal value: (\'m\', 8)'
SUMS_RULE = "sums are fp32, of int8 and uint8 operands int32"
C_RULE = "must be fp16, bf16, fp32, fp8_e4m3 or fp8_e5m2"
INT32_RULE = (
    "int32 holds sums of int8 and uint8 operands alone; "
    "must be fp16, bf16, fp32, fp8_e4m3, fp8_e5m2, int8 or uint8"
)
SIMT_RULE = "has no meaning for schedule=\"simt\"; nearest legal value: 'auto'"

REFUSALS = [
    # choices
    ({"a_major": "n"}, "a_major='n': must be one of k, m"),
    ({"b_major": "m"}, "b_major='m': must be one of n, k"),
    ({"c_major": "k"}, "c_major='k': must be one of n, m"),
    ({"d_major": 1}, "d_major=1: must be one of n, m"),
    ({"swizzle": "256B"}, "swizzle='256B': must be one of 128B, 64B, 32B, none"),
    ({"schedule": "stream_k"}, "schedule='stream_k': must be one of cooperative, pingpong, multistage, simt"),
    (
        {"a_load": "cp.async"},
        "a_load='cp.async': must be one of tma, gather, shift, cp_async, relayout; nearest legal value: 'cp_async'",
    ),
    ({"b_load": None}, "b_load=None: must be one of tma, gather, shift, cp_async, relayout"),
    ({"store": "smem"}, "store='smem': must be one of tma, staged, direct"),
    ({"scheduler": "static"}, "scheduler='static': must be one of persistent, per_tile, stream_k, dynamic"),
    ({"epilogue": "relu"}, "epilogue='relu': must be an epilogue graph"),
    (
        {"promote": 100},
        "promote=100: must be a multiple of the 16 elements of K that an instruction multiplies, or None; "
        "nearest legal value: 96",
    ),
    ({"promote": "never"}, "promote='never': must be an integer from 16 to 1048576"),
    (
        {"promote": 48, "a_dtype": "fp8", "b_dtype": "fp8"},
        "promote=48: must be a multiple of the 32 elements of K that an instruction multiplies, or None; "
        "nearest legal value: 64",
    ),
    ({"promote": 128, "schedule": "simt"}, f"promote=128: {SIMT_RULE}"),
    (
        {"epilogue": epi.define(gated="halves")(lambda gate, up: gate * up).transposed()},
        "epilogue='# of the transposed product\\nd = gate * up': B's columns hold a gated pair, not A's rows; "
        "give the graph itself, not its transpose",
    ),
    ({"a_dtype": "fp4"}, "a_dtype='fp4': must be one of fp16, bf16, fp32, fp8_e4m3, fp8_e5m2, int8, uint8, int32"),
    (
        {"d_dtype": torch.float8_e4m3fnuz},
        "d_dtype=torch.float8_e4m3fnuz: is a format of other GPUs, with a different exponent bias; must be one of "
        "fp16, bf16, fp32, fp8_e4m3, fp8_e5m2, int8, uint8, int32; nearest legal value: 'fp8_e4m3'",
    ),
    (
        {"a_dtype": "fp64"},
        f"a_dtype='fp64': kernels accumulate in fp32 at most; {DTYPE_RULE}; "
        "nearest legal value: 'fp32'",
    ),
    (
        {"a_dtype": torch.complex64},
        "a_dtype=torch.complex64: is complex: multiply real and imaginary parts separately; must be one of fp16, bf16, "
        "fp32, fp8_e4m3, fp8_e5m2, int8, uint8, int32",
    ),
    ({"d_dtype": torch.int16}, f"d_dtype=torch.int16: {DTYPE_RULE}"),
    (
        {"a_dtype": "fp8", "b_dtype": "bf16"},
        "b_dtype='bf16': A is fp8_e4m3, B must be fp8_e4m3 or fp8_e5m2; nearest legal value: 'fp8_e4m3'",
    ),
    # the tile
    ({"tile": 128}, "tile=128: must be Tile(m, n, k)"),
    ({"tile": (128,)}, "tile=(128,): must be Tile(m, n, k)"),
    ({"tile": (100, 128, 64)}, "tile.m=100: must be a multiple of 64; nearest legal value: 128"),
    ({"tile": (16, 128, 64), "swap": False}, "tile.m=16: must be a multiple of 64; nearest legal value: 64"),
    ({"tile": (16, 100, 64), "swap": True}, "tile.n=100: must be a multiple of 64; nearest legal value: 128"),
    ({"tile": (128, 124, 64)}, "tile.n=124: must be a multiple of 8; nearest legal value: 128"),
    ({"swap": 1}, "swap=1: must be True or False"),
    ({"constant": ("c",)}, "constant=('c',): must be a tuple of \"a\" and \"b\"; nearest legal value: ('b',)"),
    (
        {"evict_first": ("c",)},
        "evict_first=('c',): must be a tuple of \"a\", \"b\" and \"d\"; nearest legal value: ('d',)",
    ),
    (
        {"schedule": "multistage", "scheduler": "dynamic"},
        "scheduler='dynamic': only the producer warp of schedule=\"cooperative\" or \"pingpong\" takes tiles "
        "from a counter; "
        "nearest legal value: 'persistent'",
    ),
    (
        {"scheduler": "stream_k", "batch_invariant": True},
        "scheduler='stream_k': the order of additions along K depends on M or on timing, which "
        "batch_invariant=True excludes; "
        "nearest legal value: 'persistent'",
    ),
    (
        {"epilogue": epi.dropout_residual(0.5), "batch_invariant": True},
        "batch_invariant=True: the epilogue's random numbers depend on an element's index in D; "
        "nearest legal value: False",
    ),
    (
        {"scheduler": "stream_k", "split_k": 4},
        'split_k=4: scheduler="stream_k" chooses its own splits along K; nearest legal value: 1',
    ),
    ({"tile": (128, 128, 40)}, "tile.k=40: must be a multiple of 16; nearest legal value: 32"),
    ({"tile": (128, 272, 64)}, "tile.n=272: one wgmma has at most 256 columns; nearest legal value: 256"),
    (
        {"tile": (192, 64, 64), "consumers": 2},
        "tile.m=192: 2 consumer warpgroups need a multiple of 128 rows; nearest legal value: 128",
    ),
    (
        {"tile": (64, 64, 64), "consumers": 3},
        "tile.m=64: 3 consumer warpgroups need a multiple of 192 rows; nearest legal value: 192",
    ),
    # numbers
    ({"stages": 0}, "stages=0: must be from 1 to 16; nearest legal value: 1"),
    ({"stages": 17}, "stages=17: must be from 1 to 16; nearest legal value: 16"),
    ({"stages": 2.0}, "stages=2.0: must be an integer from 1 to 16"),
    ({"stages": True}, "stages=True: must be an integer from 1 to 16"),
    ({"consumers": 4}, "consumers=4: must be from 1 to 3; nearest legal value: 3"),
    ({"epilogue_stages": -1}, "epilogue_stages=-1: must be from 1 to 16; nearest legal value: 1"),
    ({"input_stages": 0}, "input_stages=0: must be from 1 to 16; nearest legal value: 1"),
    ({"input_stages": "2"}, "input_stages='2': must be an integer from 1 to 16"),
    ({"sms": 2000}, "sms=2000: must be from 1 to 1024; nearest legal value: 1024"),
    ({"cluster": (3, 1)}, f"cluster=(3, 1): {CLUSTER_RULE}"),
    ({"cluster": (2, 8)}, f"cluster=(2, 8): {CLUSTER_RULE}"),
    ({"cluster": 2}, f"cluster=2: {CLUSTER_RULE}"),
    ({"cluster": (2, 1, 0)}, f"cluster=(2, 1, 0): {CLUSTER_RULE}"),
    ({"cluster": (2, 2, 3)}, f"cluster=(2, 2, 3): {CLUSTER_RULE}"),
    ({"cluster": (1, 1, 1, 1)}, f"cluster=(1, 1, 1, 1): {CLUSTER_RULE}"),
    (
        {"cluster": (1, 1, 4), "split_k": 10},
        "split_k=10: must be a multiple of the 4 splits that a cluster reduces; nearest legal value: 8",
    ),
    (
        {"cluster": (1, 1, 4), "split_k": 8, "split_reduction": "cluster"},
        'split_k=8: split_reduction="cluster" reduces 4 splits in a cluster of (1, 1, 4); nearest legal value: 4',
    ),
    (
        {"split_reduction": "atomic", "batch_invariant": True},
        "split_reduction='atomic': the order of additions along K depends on M or on timing, which "
        "batch_invariant=True excludes; "
        "nearest legal value: 'workspace'",
    ),
    (
        {"scheduler": "stream_k", "split_reduction": "launch"},
        'split_reduction=\'launch\': scheduler="stream_k" reduces its splits in workspace; '
        "nearest legal value: 'workspace'",
    ),
    (
        {"schedule": "pingpong", "cluster": (1, 1, 2)},
        'schedule=\'pingpong\': splits are reduced by the consumers of schedule="cooperative"; '
        "nearest legal value: 'cooperative'",
    ),
    ({"cluster": (2.0, 1)}, f"cluster=(2.0, 1): {CLUSTER_RULE}"),
    ({"cluster": (True, 1)}, f"cluster=(True, 1): {CLUSTER_RULE}"),
    ({"raster": ("k", 8)}, f"raster=('k', 8): {RASTER_RULE}"),
    ({"raster": "m"}, f"raster='m': {RASTER_RULE}"),
    ({"raster": ("m", 0)}, "raster[1]=0: must be from 1 to 4096; nearest legal value: 1"),
    ({"raster": ("n", 1.5)}, "raster[1]=1.5: must be an integer from 1 to 4096"),
    # fields together
    ({"acc_dtype": "fp16"}, f"acc_dtype='fp16': {SUMS_RULE}; nearest legal value: 'fp32'"),
    ({"acc_dtype": "fp32", "a_dtype": "int8"}, f"acc_dtype='fp32': {SUMS_RULE}; nearest legal value: 'int32'"),
    ({"acc_dtype": "int32", "math": "tf32"}, f"acc_dtype='int32': {SUMS_RULE}; nearest legal value: 'fp32'"),
    ({"acc_dtype": "fp32", "d_dtype": "int32"}, f"d_dtype='int32': {INT32_RULE}; nearest legal value: 'fp32'"),
    ({"b_dtype": "bf16", "d_dtype": "int32"}, f"d_dtype='int32': {INT32_RULE}; nearest legal value: 'fp32'"),
    ({"c_dtype": "int32"}, f"c_dtype='int32': {C_RULE}; nearest legal value: 'fp32'"),
    ({"c_dtype": "int8", "a_dtype": "int8"}, f"c_dtype='int8': {C_RULE}; nearest legal value: 'bf16'"),
    (
        {"zero_point_a": "row", "a_dtype": "bf16"},
        "zero_point_a='row': only int8 and uint8 operands have zero points; nearest legal value: 'auto'",
    ),
    (
        {"a_dtype": "fp32", "schedule": "cooperative"},
        "schedule='cooperative': fp32 operands run on the CUDA cores; nearest legal value: 'simt'",
    ),
    (
        {"b_dtype": "fp32", "schedule": "multistage"},
        "schedule='multistage': fp32 operands run on the CUDA cores; nearest legal value: 'simt'",
    ),
    ({"a_dtype": "fp16", "b_dtype": "bf16"}, "b_dtype='bf16': A is fp16, B must be fp16; nearest legal value: 'fp16'"),
    (
        {"schedule": "multistage", "cluster": (2, 1)},
        'cluster=(2, 1): multicast needs the producer warp of schedule="cooperative"; nearest legal value: (1, 1)',
    ),
    (
        {"schedule": "multistage", "a_load": "gather"},
        'a_load=\'gather\': only the producer warpgroup of schedule="cooperative" loads by threads; '
        "nearest legal value: 'relayout'",
    ),
    (
        {"schedule": "multistage", "b_load": "gather"},
        'b_load=\'gather\': only the producer warpgroup of schedule="cooperative" loads by threads; '
        "nearest legal value: 'relayout'",
    ),
    (
        {"schedule": "pingpong", "consumers": 3},
        "consumers=3: pingpong has two consumer warpgroups; nearest legal value: 2",
    ),
    (
        {"schedule": "pingpong", "scheduler": "per_tile"},
        "scheduler='per_tile': pingpong warpgroups need more than one tile each; "
        "nearest legal value: 'persistent'",
    ),
    *[
        ({"schedule": "simt", name: value}, f"{name}={value!r}: {SIMT_RULE}")
        for name, value in {
            "cluster": (1, 1), "swizzle": "128B", "consumers": 1, "a_load": "tma", "b_load": "tma",
            "store": "direct", "epilogue_stages": 1, "input_stages": 2, "scheduler": "persistent", "raster": ("m", 1),
            "sms": 4,
        }.items()
    ],
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), REFUSALS, ids=[m.split(":")[0] for _, m in REFUSALS])
def test_refusals_word_for_word(fields, message):
    """Each illegal field names itself, its value, the rule and the nearest legal value."""
    with pytest.raises(SpecError) as e:
        GemmSpec(**fields)
    assert str(e.value) == message


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((0, 64, 64), "tile.m=0: must be from 1 to 65536; nearest legal value: 1"),
        ((64, -16, 64), "tile.n=-16: must be from 1 to 65536; nearest legal value: 1"),
        ((64, 64, 1 << 20), "tile.k=1048576: must be from 1 to 65536; nearest legal value: 65536"),
        ((math.nan, 64, 64), "tile.m=nan: must be an integer from 1 to 65536"),
        ((64, math.inf, 64), "tile.n=inf: must be an integer from 1 to 65536"),
        ((64, 64, "64"), "tile.k='64': must be an integer from 1 to 65536"),
    ],
)
def test_tile_refusals_word_for_word(size, message):
    """A tile is made of positive, finite integers."""
    with pytest.raises(SpecError) as e:
        Tile(*size)
    assert str(e.value) == message


def test_the_declared_example():
    """The spec of the documentation is legal and keeps what it was given."""
    spec = GemmSpec(
        tile=Tile(128, 256, 64),
        cluster=(2, 1),
        stages=4,
        swizzle="128B",
        schedule="cooperative",
        raster=("m", 8),
    )
    assert list(spec.given()) == ["tile", "cluster", "stages", "swizzle", "schedule", "raster"]
    assert tuple(spec.tile) == (128, 256, 64)


def test_a_bare_spec_leaves_everything_open():
    """Without fields all is "auto"."""
    assert GemmSpec().given() == {}
    assert repr(GemmSpec()) == "GemmSpec()"
    assert all(getattr(GemmSpec(), f.name) == "auto" for f in dataclasses.fields(GemmSpec))


def test_dtypes_are_normalised():
    """Names, torch dtypes and members make equal specs."""
    made = {GemmSpec(a_dtype=x) for x in ("bf16", "bfloat16", torch.bfloat16, DType.BF16)}
    assert len(made) == 1 and made.pop().a_dtype is DType.BF16


def test_a_tile_may_be_given_as_a_tuple():
    """Tuples of two or three numbers become a `Tile`; k is 64 when left out."""
    assert GemmSpec(tile=(128, 256)).tile == Tile(128, 256, 64)


def test_specs_are_frozen_and_keyword_only():
    """A spec cannot be changed after it was made, nor be given fields by position."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        GemmSpec().stages = 3
    with pytest.raises(TypeError):
        GemmSpec("bf16")


def test_an_epilogue_prints_as_python():
    """A spec with an epilogue graph prints as valid Python too."""
    from cutegemm.epilogue import Graph, Node, Result  # the names that the printed text uses

    spec = GemmSpec(epilogue=linear_combination(with_c=True))
    assert eval(repr(spec), {"GemmSpec": GemmSpec, "Graph": Graph, "Node": Node, "Result": Result}) == spec


@given(specs())
def test_any_spec_prints_as_python_and_hashes_by_value(spec):
    """Evaluating the printed spec gives an equal spec with an equal hash."""
    again = eval(repr(spec), {"GemmSpec": GemmSpec, "Tile": Tile})
    assert again == spec and hash(again) == hash(spec)
    assert GemmSpec(**spec.given()) == spec


def test_any_integers_and_lists_are_taken_and_made_plain():
    """NumPy's integers and lists give the same spec, of the same hash and text, as Python's own and tuples."""
    plain = GemmSpec(tile=(128, 256, 64), cluster=(2, 1), stages=4, raster=("m", 8), sms=12, consumers=2)
    given_otherwise = GemmSpec(
        tile=[np.int64(128), np.int32(256), np.uint8(64)],
        cluster=[np.int64(2), 1],
        stages=np.int16(4),
        raster=["m", np.int64(8)],
        sms=np.uint32(12),
        consumers=np.int8(2),
    )
    assert given_otherwise == plain and hash(given_otherwise) == hash(plain)
    assert repr(given_otherwise) == repr(plain) and type(given_otherwise.stages) is int


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GemmSpec(tiles=(128, 128)), "tiles=(128, 128): GemmSpec has no such field; its fields are a_dtype, "),
        (lambda: Tile(64, 64, depth=64), "depth=64: Tile has no such field; its fields are m, n, k"),
        (lambda: dataclasses.replace(GemmSpec(), stage=3), "stage=3: GemmSpec has no such field; "),
        (lambda: cutegemm.problem(8, 8, 8, dtypes="fp16"), "dtypes='fp16': problem has no such argument; "),
        (
            lambda: cutegemm.build(tile=(128, 128)),
            "tile=(128, 128): build has no such argument; its arguments are spec, problem; it is a field of GemmSpec; "
            "nearest legal value: 'GemmSpec(tile=...)'",
        ),
        (lambda: cutegemm.Gemm(GemmSpec(), off=1), "off=1: Gemm has no such argument; its arguments are spec, of"),
        (lambda: cutegemm.tune(GemmSpec(), [], candidate=3), "candidate=3: tune has no such argument; "),
        (lambda: nn.Linear(8, 8, fallbak="error"), "fallbak='error': Linear has no such argument; "),
        (lambda: nn.MLP(8, 8, fallbak="error"), "fallbak='error': Linear has no such argument; "),
        (lambda: epi.bias_act(activaton="gelu"), "activaton='gelu': bias_act has no such argument; "),
    ],
)  # fmt: skip
def test_an_unknown_keyword_is_refused_by_name(call, message):
    """A field or argument that there is none of is a `GemmError` and a `TypeError`, and names what is near."""
    with pytest.raises(GemmError) as e:
        call()
    assert isinstance(e.value, TypeError) and str(e.value).startswith(message)
    near = {
        "tiles": "tile",
        "stage": "stages",
        "dtypes": "dtype",
        "candidate": "candidates",
        "fallbak": "fallback",
    }
    wanted = {**near, "tile": "GemmSpec(tile=...)", "off": "of", "depth": None, "activaton": "activation"}
    assert e.value.nearest == wanted[e.value.field]


def test_a_spec_is_still_a_plain_dataclass():
    """Copies, pickles and the fields' order are as without the check of names."""
    spec = GemmSpec(tile=Tile(128, 256), epilogue=epi.bias())
    assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == dataclasses.replace(spec) == spec
    assert list(inspect.signature(GemmSpec).parameters) == [x.name for x in dataclasses.fields(GemmSpec)]


def test_everything_public_is_listed():
    """`dir` has what loads on first use, too, and nothing that is not public."""
    names = dir(cutegemm)
    lazy = {"linear", "matmul", "bmm", "nn", "emulator", "ops", "epilogue", "layouts", "inductor"}
    assert lazy | set(cutegemm.__all__) <= set(names) and "importlib" not in names
    assert all(getattr(cutegemm, x) is not None for x in names if not x.startswith("__"))
    with pytest.raises(AttributeError, match="has no attribute 'liner'") as e:
        cutegemm.liner  # noqa: B018
    assert e.value.name == "liner" and e.value.obj is cutegemm


def test_the_docstring_lists_every_operand_type():
    """Whatever kernels multiply is named where the fields are described."""
    line = GemmSpec.__doc__.partition("a_dtype, b_dtype:")[2].partition("acc_dtype")[0]
    assert [x.value for x in DType if partners(x) and f'"{x.value}"' not in line] == []
