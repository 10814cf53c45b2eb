# SPDX-License-Identifier: Apache-2.0
"""Sequences of calls on one `Gemm`, drawn from a seed: what changes from call to call, and what must hold of each.

A call may differ from the one before in extents, batch, scalars, layouts, what is given, what aliases what,
device and backend, and it may be wrong. Operands are views in buffers that are NaN all around. Every good
call is compared with fp64; nothing around an output is written, races are looked for on the emulator; every
wrong call is refused with a `GemmError` that names the argument, and writes nothing.

Few kernels serve many calls: the specs, graphs and classes of layout are few, the calls are not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from cutegemm import GemmSpec, Tile, emulator
from cutegemm.epilogue.graph import Graph, linear_combination
from cutegemm.errors import GemmError
from cutegemm.gemm import Gemm, representative
from cutegemm.running.arguments.results import Partial
from cutegemm.running.numerics.bounds import bound
from tests.support.epilogues import assert_outputs_close, random_inputs, seeded_graph
from tests.support.memory import Guarded, Layout
from tests.support.numerics import assert_close
from tests.support.patience import PATIENCE

SMALL = Tile(64, 32, 32)
LOADED: dict[str, Any] = {"tile": SMALL, "consumers": 1, "stages": 2}
COPIED = {"a_load": "relayout", "b_load": "relayout"}
# Name -> fields of a spec, and whether its operands may lie in any way or only as TMA takes them.
SPECS: dict[str, tuple[dict[str, Any], bool]] = {
    "cooperative": ({**LOADED, "a_load": "tma", "b_load": "tma"}, False),
    "gather": ({**LOADED, "a_load": "gather", "b_load": "gather"}, True),
    "relayout": ({**LOADED, **COPIED}, True),
    "multistage": ({**LOADED, "schedule": "multistage", "a_load": "tma", "b_load": "tma"}, False),
    "pingpong": (
        {"tile": SMALL, "schedule": "pingpong", "stages": 2, "a_load": "tma", "b_load": "tma"},
        False,
    ),
    "shift": ({**LOADED, "a_load": "shift", "b_load": "shift"}, True),
    "swapped": (
        {"tile": Tile(16, 64, 32), "swap": True, "stages": 2, "a_load": "tma", "b_load": "tma"},
        False,
    ),
    "stream-K": ({**LOADED, "scheduler": "stream_k", "sms": 3, "swap": False}, True),
    "dynamic": ({**LOADED, "scheduler": "dynamic", "sms": 2, "swap": False}, True),
    "simt": ({"schedule": "simt"}, True),
    "fp32": ({"a_dtype": "fp32"}, True),
    "fp8": (
        {**LOADED, "tile": Tile(64, 32, 64), "a_dtype": "fp8_e4m3", "b_dtype": "fp8_e5m2", **COPIED},
        True,
    ),
}
# spec -> types of A, B and of C and D; others have bf16
TYPES = {
    "fp32": (torch.float32,) * 3,
    "fp8": (torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16),
}
# Drawn epilogues, by spec: a graph is a kernel on each spec that takes it, and on SIMT a slow one to compile.
GRAPHS = {"cooperative": 8, "multistage": 4, "simt": 3}
CALLS = 10
EXTENTS = (2, 3, 7, 8, 16, 31, 33, 40, 64, 65)
EVEN = (8, 16, 24, 40, 64)
SCALARS = (1.0, 1.0, 0.5, -2.0, 0.0)
OPTIONS = [
    emulator.Options(races=True, policy=x, seed=3, max_seconds=PATIENCE) for x in ("eager", "lazy", "random")
]


@dataclass
class Call:
    """One call, ready to be made.

    Attributes:
        text: what it is, in words.
        args, named: for `Gemm.run`, but for the backend.
        backend: None, "reference" or "emulator".
        check: of a good call, given its result.
        refused: of a wrong call, the name of the argument that its error must give.
        guards: the buffers around what is written; of a wrong call nothing in them may change.
    """

    text: str
    args: tuple[Any, ...]
    named: dict[str, Any]
    backend: str | None
    check: Callable[[Any], None] | None = None
    refused: str | None = None
    guards: list[Guarded] = field(default_factory=list)


class Sequence:
    """The calls of one seed on one `Gemm`."""

    def __init__(self, seed: int) -> None:
        self.rng = self.where = random.Random(seed)
        # Extents and layouts come back, so that calls of one kind meet what earlier ones have left.
        self.places = [self.rng.random() for _ in range(2)]
        self.generator = torch.Generator().manual_seed(seed)
        fused = self.rng.random() < 0.5
        self.name = self.rng.choice(tuple(GRAPHS if fused else SPECS))
        fields, self.anyhow = SPECS[self.name]
        self.graph: Graph | None = seeded_graph(self.rng.randrange(GRAPHS[self.name])) if fused else None
        if self.graph is not None and self.graph.gated == "interleaved" and self.name != "simt":
            # every other column of B is none that TMA could take
            fields = {**fields, "b_load": "relayout"}
        self.spec = GemmSpec(**fields, **({} if self.graph is None else {"epilogue": self.graph}))
        self.gemm = Gemm(self.spec, representative(self.spec))
        self.types = TYPES.get(self.name, (torch.bfloat16,) * 3)
        self.dtype = self.types[2]

    def calls(self) -> list[Call]:
        """As many calls as a sequence has, each drawn when it is asked for."""
        return [self.call() for _ in range(CALLS)]

    def call(self) -> Call:
        """The next call: mostly good, some on meta tensors, some wrong."""
        self.where = random.Random(self.rng.choice((*self.places * 3, self.rng.random())))
        made = self._plain() if self.graph is None else self._fused()
        kind = self.rng.random()
        if kind < 0.08:
            return self._on_meta(made)
        return self._wrong(made) if kind < 0.25 else made

    def _backend(self) -> str | None:
        return self.rng.choice((None, "reference", "emulator"))

    def _layout(self, anyhow: bool) -> Layout:
        """Row-major as TMA takes it, or with any pitch from any address."""
        if anyhow and self.where.random() < 0.5:
            return Layout(aligned=False, pad=self.where.randrange(4), offset=self.where.randrange(8))
        return Layout(pad=8 * self.where.randrange(2), offset=8 * self.where.randrange(2))

    def _operand(self, shape: tuple[int, ...], dtype: torch.dtype, anyhow: bool) -> torch.Tensor:
        """A view with random elements; now and then lazily negated, as `z.conj().imag` is.

        That is copied before it is multiplied, and the copy is packed, which TMA may not take.
        """
        view = self._layout(anyhow).random(shape, dtype, self.generator)
        # no operation of torch negates 8 bits
        turns = anyhow and self.rng.random() < 0.1 and dtype.itemsize > 1
        return torch._neg_view(view) if turns else view

    def _extents(self, of: tuple[int, ...]) -> tuple[int, int, int]:
        m, n, k = (self.where.choice(of) for _ in range(3))
        return m, n, k

    def _pair(self, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, tuple[int, ...]]:
        """A (L, M, K), B (L, K, N), and D's leading extents; either may serve every batch."""
        batch = self.where.choice((None, None, None, 1, 2))
        lead = () if batch is None else (batch,)
        whose = self.where.choice(("both", "both", "a", "b"))
        a = self._operand((*(lead if whose != "b" else ()), m, k), self.types[0], self.anyhow)
        b = self._operand((*(lead if whose != "a" else ()), k, n), self.types[1], self.anyhow)
        return a, b, lead

    def _plain(self) -> Call:
        """alpha A B + beta C, with or without C, into new memory, given memory, or C itself."""
        m, n, k = self._extents(EXTENTS)
        a, b, lead = self._pair(m, n, k)
        alpha, beta = self.rng.choice(SCALARS), self.rng.choice((*SCALARS, None))
        with_c = self.rng.random() < 0.6
        guards, named = [], {"alpha": alpha}
        c = before = None
        if with_c:
            home = self._layout(True).make((*lead, m, n), self.dtype)
            c = home.view.copy_(torch.randn((*lead, m, n), generator=self.generator))
            if beta == 0:
                c.fill_(torch.nan)
            before, named["beta"] = c.clone(), beta
            named["c"] = c
        where = self.rng.choice(("new", "given", "c") if with_c else ("new", "given"))
        if where == "c":
            named["out"] = c
            guards.append(home)
        elif where == "given":
            home = self._layout(True).make((*lead, m, n), self.dtype)
            named["out"] = home.view
            guards.append(home)

        def check(d: torch.Tensor) -> None:
            assert d.shape == (*lead, m, n) and d.dtype == self.dtype and d.device == a.device
            assert where == "new" or d is named["out"]
            scale = 0.0 if not with_c else 1.0 if beta is None else beta
            if a.element_size() > 1:
                assert_close(d, a, b, before, alpha, scale)
                return
            # the bounds know how tensor cores round sums of 8-bit products
            numbers = {"alpha": alpha} | ({"beta": scale, "c": before} if scale else {})
            complaint = bound(linear_combination(bool(scale)), a, b, numbers, {"d": d.dtype})["d"].complaint(
                d
            )
            assert complaint is None, complaint

        text = f"{(*lead, m, n, k)}, alpha {alpha}, beta {beta if with_c else '-'}, out {where}"
        return Call(text, (a, b), named, self._backend(), check, guards=guards)

    def _fused(self) -> Call:
        """The graph's every output, some stores into given memory."""
        graph = self.graph
        assert graph is not None
        m, n, k = self._extents(EXTENTS if self.anyhow else EVEN)
        a, b, lead = self._pair(m, 2 * n if graph.gated else n, k)
        named = random_inputs(graph, (*lead, m, n), self.generator, (torch.float32,))
        for name in graph.tensors:
            named[name] = self._beside_nan(named[name])
        inputs, guards, outs = dict(named), [], {}
        for x in graph.stores:
            if x.dtype is None and x.major is None and self.rng.random() < 0.4:
                home = self._layout(False).make((*lead, m, n), self.dtype)
                outs[x.name] = home.view
                guards.append(home)
        if outs:
            named["out"] = outs

        def check(out: Any) -> None:
            found = {"d": out} if isinstance(out, torch.Tensor) else vars(out)
            assert all(found[name] is given for name, given in outs.items())
            finished = {name: x.finish() if isinstance(x, Partial) else x for name, x in found.items()}
            assert_outputs_close(finished, graph, a, b, inputs)

        text = f"{(*lead, m, n, k)}, out {sorted(outs) or 'new'}"
        return Call(text, (a, b), named, self._backend(), check, guards=guards)

    @staticmethod
    def _beside_nan(values: torch.Tensor) -> torch.Tensor:
        """The same values in a buffer that is NaN before and after them, at a multiple of 16 bytes."""
        step = 16 // values.element_size()
        inner = -(-values.shape[-1] // step) * step
        home = torch.full((*values.shape[:-1], inner + step), torch.nan, dtype=values.dtype)
        view = home[..., : values.shape[-1]]
        view.copy_(values)
        return view

    def _on_meta(self, made: Call) -> Call:
        """The same without memory: a result without memory, of the same shapes."""
        there = lambda x: (
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
            if isinstance(x, torch.Tensor)
            else x
        )
        named = {
            k: {n: there(t) for n, t in v.items()} if isinstance(v, dict) else there(v)
            for k, v in made.named.items()
        }
        if self.graph is None and "out" in named and made.named.get("c") is made.named["out"]:
            named["out"] = named["c"]

        def check(out: Any) -> None:
            found = [out] if isinstance(out, torch.Tensor) else list(vars(out).values())
            tensors = [x.values if isinstance(x, Partial) else x for x in found]
            assert all(x.device.type == "meta" for x in tensors)

        backend = self.rng.choice((None, "reference"))
        return Call(f"on meta, {made.text}", tuple(map(there, made.args)), named, backend, check)

    def _wrong(self, made: Call) -> Call:
        """The same call with one thing wrong."""
        a, b = made.args
        named = {k: v for k, v in made.named.items() if k != "out"}
        home = Layout().make((*a.shape[:-1], b.shape[-1]), self.dtype)
        kinds: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
            "b of other rows": ((a, b[..., :-1, :]), named, "b"),
            "b on meta": ((a, b.to("meta")), named, "b"),
            "b of another type": ((a, b.double()), named, "b"),
            "a no tensor": (([[1.0]], b), named, "a"),
            "a of one dimension": ((a.flatten(), b), named, "a"),
            "an unknown name": ((a, b), {**named, "unheard": 1.0}, "unheard"),
            "out of another shape": ((a, b), {**named, "out": home.view.unsqueeze(0).unsqueeze(0)}, "out"),
        }
        if self.graph is None:
            kinds |= {
                "out over a": (
                    (a, b),
                    {**named, "out": a.as_strided((*a.shape[:-1], b.shape[-1]), (0,) * a.dim())},
                    "out",
                ),
                "beta without c": ((a, b), {"beta": 1.0}, "beta"),
                "alpha in letters": ((a, b), {**named, "alpha": "2"}, "alpha"),
                "alpha a tensor": ((a, b), {**named, "alpha": torch.ones(2)}, "alpha"),
                "c of another shape": ((a, b), {**named, "c": torch.ones(1, 1, dtype=self.dtype)}, "c"),
            }
        elif self.graph.stores and "d" not in [x.name for x in self.graph.stores]:
            kinds.pop("out of another shape")
        name = self.rng.choice(sorted(kinds))
        args, changed, refused = kinds[name]
        return Call(f"{name}, {made.text}", args, changed, self._backend(), refused=refused, guards=[home])


def carry_out(gemm: Gemm, call: Call, options: emulator.Options) -> None:
    """Make a call and check all that must hold of it.

    Raises:
        AssertionError: something does not hold.
        Exception: what only a defect raises.
    """
    if call.refused is not None:
        _check_refused(gemm, call)
        return
    assert call.check is not None
    if call.backend == "emulator":
        run = emulator.run(gemm, *call.args, options=options, **call.named)
        assert run.findings == [], run.findings
        call.check(run.d)
    else:
        call.check(gemm.run(*call.args, backend=call.backend, **call.named))
    assert all(x.untouched() for x in call.guards), "elements around an output were written"


def _check_refused(gemm: Gemm, call: Call) -> None:
    assert call.refused is not None
    try:
        gemm.run(*call.args, backend=call.backend, **call.named)
    except GemmError as error:
        named = error.concerns(call.refused) or str(error).startswith(call.refused)
        assert named, f"the error does not name {call.refused}: {error}"
    else:
        raise AssertionError(f"accepted: {call.text}")
    assert all(x.unwritten() for x in call.guards), "a refused call has written"


def run_seed(seed: int, told: Callable[[str], None] = lambda text: None) -> int:
    """Make the calls of one seed; returns how many.

    Raises:
        AssertionError: naming the seed, the spec and the call.
    """
    sequence = Sequence(seed)
    for i in range(CALLS):
        call = sequence.call()
        options = OPTIONS[(seed + i) % len(OPTIONS)]
        where = f"{sequence.name}, {call.backend or 'by device'}: {call.text}"
        told(where)
        try:
            carry_out(sequence.gemm, call, options)
        except Exception as error:
            graph = "" if sequence.graph is None else f"\n{sequence.graph}"
            raise AssertionError(
                f"call {i} of `python -m tests.contract {seed}` ({where}): {type(error).__name__}: {error}{graph}"
            ) from error
    return CALLS
