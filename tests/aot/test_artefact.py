# SPDX-License-Identifier: Apache-2.0
"""Artefacts: saved, loaded, run in the emulator or on a GPU, and refused when they are not whole."""

import copy
import dataclasses
import json
import pickle
import subprocess
import sys

import pytest
import torch

import cutegemm
from cutegemm import GemmSpec, Tile, files, problem
from cutegemm import epilogue as epi
from cutegemm.errors import CompileError, InputError, PlanError
from cutegemm.files import packed, sealed, unpacked, unsealed

SPEC = GemmSpec(tile=Tile(128, 64, 64))


@epi.define
def fused(acc, *, bias: epi.Row, residual: epi.Matrix, scale: epi.Scalar):
    """Several outputs, a vector, a matrix and a scalar."""
    h = epi.relu(acc * scale + bias)
    return epi.Output(d=h + residual, hidden=epi.Store(h, dtype="bf16"), amax=epi.AbsMax(h))


CASES = {
    "plain": (SPEC, problem(100, 72, 136)),
    "with c": (SPEC, problem(100, 72, 136, c_dtype="bf16")),
    "unaligned rows": (GemmSpec(), problem(65, 33, 77)),
    "relayout": (GemmSpec(tile=Tile(128, 64, 64), b_load="relayout"), problem(65, 33, 77)),
    "workspace": (
        GemmSpec(tile=Tile(128, 64, 64), split_k=2, split_reduction="workspace"),
        problem(128, 64, 256),
    ),
    "tiles from a counter": (
        GemmSpec(tile=Tile(64, 64, 64), swap=False, scheduler="dynamic", schedule="pingpong", sms=2),
        problem(200, 136, 136),
    ),
    "fused": (GemmSpec(tile=Tile(128, 64, 64), epilogue=fused), problem(128, 64, 64, epilogue=fused)),
}


def tensors(of, device="cpu", seed=0):
    """Operands and inputs of a problem, random."""
    made = torch.Generator().manual_seed(seed)

    def matrix(x):
        return torch.randn(x.rows, x.cols, generator=made).to(torch.bfloat16).to(device)

    inputs = {name: matrix(x) for name, x in of.inputs}
    if "bias" in inputs:
        inputs |= {"bias": inputs["bias"][0], "scale": 0.5}
    return (matrix(of.a), matrix(of.b)), inputs


def results(value):
    """The outputs of a run by name."""
    return {"d": value} if isinstance(value, torch.Tensor) else vars(value)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Every case's Gemm and its artefact's path."""
    folder = tmp_path_factory.mktemp("artefacts")
    found = {}
    for i, (name, (spec, of)) in enumerate(CASES.items()):
        gemm = cutegemm.build(spec, of)
        found[name] = gemm, gemm.save(folder / f"{i}.cutegemm", [of])
    return found


@pytest.mark.sliced
@pytest.mark.parametrize("name", CASES)
def test_it_gives_the_bits_of_the_kernels_it_was_saved_from(saved, name):
    """A loaded artefact, run in the emulator, equals the Gemm that was saved, bit for bit, on other tensors too."""
    gemm, path = saved[name]
    loaded = cutegemm.load(path)
    for seed in (1, 2):
        (a, b), inputs = tensors(CASES[name][1], seed=seed)
        got = results(loaded.run(a, b, **inputs, backend="emulator"))
        want = results(gemm.run(a, b, **inputs, backend="emulator"))
        assert got.keys() == want.keys()
        for output in want:
            assert torch.equal(got[output], want[output]), output


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_it_runs_on_a_gpu(saved, name):
    """The same on a GPU, in place, in a CUDA graph, and with other numbers at every call."""
    gemm, path = saved[name]
    loaded = cutegemm.load(path)
    (a, b), inputs = tensors(CASES[name][1], "cuda")
    want = results(gemm.run(a, b, **inputs))
    for _ in range(3):
        got = results(loaded.run(a, b, **inputs))
        assert all(torch.equal(got[x], want[x]) for x in want)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = results(loaded.run(a, b, **inputs))
    for x in captured.values():
        x.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(captured[x], want[x]) for x in want)


def test_alpha_and_beta_are_a_calls_own(saved):
    """Numbers passed by value are written at every call, and beta 0 takes the recipe that reads no C."""
    path = saved["with c"][1]
    loaded = cutegemm.load(path)
    (a, b), inputs = tensors(CASES["with c"][1])
    c = inputs["c"]
    exact = a.double() @ b.double()
    for alpha, beta in ((2.0, 0.5), (-1.0, 3.0)):
        d = loaded.run(a, b, c, alpha=alpha, beta=beta, backend="emulator")
        assert torch.allclose(d.double(), alpha * exact + beta * c.double(), rtol=2e-2, atol=2e-1)
    with pytest.raises(PlanError, match="artefact"):
        loaded.run(a, b, backend="emulator")


@pytest.mark.parametrize("alpha", [1e39, -1e300])
def test_a_number_beyond_fp32_is_infinite_as_in_every_run(saved, alpha):
    """An alpha that fp32 does not hold gives what the Gemm gives, not an error of packing."""
    gemm, path = saved["plain"]
    (a, b), _ = tensors(CASES["plain"][1])
    got = cutegemm.load(path).run(a, b, alpha=alpha, backend="emulator")
    assert torch.equal(got, gemm.run(a, b, alpha=alpha, backend="emulator")) and got.isinf().all()


def test_a_loaded_artefact_is_copied_and_pickled(saved):
    """A copy and an unpickled artefact give the same bits, also of one that has run."""
    loaded = cutegemm.load(saved["fused"][1])
    (a, b), inputs = tensors(CASES["fused"][1])
    want = loaded.run(a, b, **inputs, backend="emulator").d
    for made in (copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded))):
        assert torch.equal(made.run(a, b, **inputs, backend="emulator").d, want)


def test_the_emulator_is_told_which_launches_begin_early(saved, monkeypatch):
    """Launches that may overlap the one before are run as such, so that a missing wait is found."""
    from cutegemm.running.backends import emulated

    told, run_steps = [], emulated.run_steps
    monkeypatch.setattr(
        emulated, "run_steps", lambda steps, *x, **y: (told.append(steps), run_steps(steps, *x, **y))
    )
    loaded = cutegemm.load(saved["relayout"][1])
    (a, b), _ = tensors(CASES["relayout"][1])
    loaded.run(a, b, backend="emulator")
    want = [x.pdl for x in loaded.artefact.recipes[0].steps]
    assert [x.pdl for x in told[0]] == want and any(want)


@pytest.mark.sliced
@pytest.mark.parametrize("side", ["a", "b"])
def test_unaligned_addresses_are_served_by_a_relayout(tmp_path, side):
    """An unaligned load from any address is refused with what serves; a relayout serves every address."""
    of = problem(40, 24, 48)
    of = dataclasses.replace(of, **{side: dataclasses.replace(getattr(of, side), align=2)})
    path = tmp_path / "x.cutegemm"
    with pytest.raises(CompileError, match=f"{side}_load='shift'.*2-byte aligned.*'relayout'"):
        cutegemm.Gemm(GemmSpec(), of).save(path, [of])
    loaded = cutegemm.load(cutegemm.Gemm(GemmSpec(**{f"{side}_load": "relayout"}), of).save(path, [of]))
    operands = dict(zip("ab", tensors(of)[0]))
    exact = operands["a"].double() @ operands["b"].double()
    for place in (1, 6):
        moved = torch.zeros(operands[side].numel() + 8, dtype=torch.bfloat16)[place:]
        moved = moved[: operands[side].numel()].view(operands[side].shape).copy_(operands[side])
        d = loaded.run(**operands | {side: moved}, backend="emulator")
        assert torch.allclose(d.double(), exact, rtol=2e-2, atol=1e-1)


def test_a_file_that_cannot_be_written_is_an_input_error(tmp_path):
    """A folder that is not there is named; nothing is left behind."""
    gemm = cutegemm.build(SPEC, problem(100, 72, 136))
    with pytest.raises(InputError, match="must be a file that can be written: No such file"):
        gemm.save(tmp_path / "none" / "x.cutegemm")
    assert not list(tmp_path.iterdir())


def test_several_problems_share_kernels(tmp_path):
    """One file serves several problems; problems of one kernel store it once."""
    problems = [problem(100, 72, 136), problem(128, 64, 64)]
    gemm = cutegemm.build(SPEC, problems[0])
    path = gemm.save(tmp_path / "two.cutegemm", problems)
    loaded = cutegemm.load(path)
    assert loaded.problems == tuple(problems) and len(loaded.artefact.kernels) == 1
    for of in problems:
        (a, b), _ = tensors(of)
        assert torch.equal(loaded.run(a, b, backend="emulator"), gemm.run(a, b, backend="emulator"))
    assert loaded.explain().count("launches   gemm") == 2


def test_other_problems_are_refused_before_anything_is_written(saved):
    """An extent, a stride or a type that no recipe has is a PlanError that names the nearest problem."""
    loaded = cutegemm.load(saved["plain"][1])
    (a, b), _ = tensors(CASES["plain"][1])
    out = torch.full((99, 72), float("nan"), dtype=torch.bfloat16)
    before = out.clone()
    with pytest.raises(
        PlanError, match=r"\(m, n, k\)=\(99, 72, 136\).*nearest legal value: \(100, 72, 136\)"
    ):
        loaded.run(a[:99], b, out=out, backend="emulator")
    assert torch.equal(out.view(torch.int16), before.view(torch.int16))
    with pytest.raises(PlanError, match="if a is bf16, strides"):
        loaded.run(a.t().contiguous().t(), b, backend="emulator")
    shifted = torch.zeros(a.numel() + 1, dtype=a.dtype)[1:].view(a.shape)
    with pytest.raises(PlanError, match="16-byte aligned; it is bf16, .*2-byte aligned"):
        loaded.run(shifted, b, backend="emulator")


def test_a_file_that_is_not_whole_is_refused(saved, tmp_path):
    """Missing and foreign files, and kernels of the cache, raise InputError with the reason."""
    path = tmp_path / "x.cutegemm"
    for data, words in (
        (b"", "differs from its checksum"),
        (sealed(b"PK\x03\x04 nothing of ours"), "BadZipFile"),
        (sealed(packed({"0" * 40 + ".zip": b""})), "KeyError: 'manifest.json'"),
    ):
        path.write_bytes(data)
        with pytest.raises(InputError, match=f"is not a whole artefact: .*{words}"):
            cutegemm.load(path)
    with pytest.raises(InputError, match="No such file"):
        cutegemm.load(tmp_path / "none")
    with pytest.raises(InputError, match="must be the path"):
        cutegemm.load(3)


def test_damage_anywhere_is_found(saved, tmp_path):
    """A flipped byte and a missing end are refused, wherever they are."""
    whole = saved["plain"][1].read_bytes()
    path = tmp_path / "x.cutegemm"
    for place in (*range(64), *range(64, len(whole), 97), len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 0xFF
        for data in (changed, whole[:place]):
            path.write_bytes(data)
            with pytest.raises(InputError, match="it differs from its checksum"):
                cutegemm.load(path)


def test_a_file_that_unpacks_to_too_much_is_refused(saved, monkeypatch):
    """What the members hold together is bounded before any is read."""
    monkeypatch.setattr(files, "MOST_BYTES", 1000)
    with pytest.raises(InputError, match="it holds more than 1,000 bytes"):
        cutegemm.load(saved["plain"][1])


def test_another_format_is_refused_by_name(saved, tmp_path, monkeypatch):
    """A file of another format says which, and what to do."""
    from cutegemm.aot import artefact

    monkeypatch.setattr(artefact, "FORMAT", artefact.FORMAT + 1)
    with pytest.raises(InputError, match="has format 1; this version of cutegemm reads 2: save it again"):
        cutegemm.load(saved["plain"][1])


def test_a_patch_beside_its_parameter_is_refused(saved, tmp_path):
    """A recipe that would write outside a parameter is no artefact, whatever its checksum says."""
    path = tmp_path / "hostile.cutegemm"
    members = unpacked(unsealed(saved["plain"][1].read_bytes()))
    manifest = json.loads(members["manifest.json"])
    manifest["recipes"][0]["steps"][0]["patches"][0]["offset"] = 1 << 20
    path.write_bytes(sealed(packed(members | {"manifest.json": json.dumps(manifest).encode()})))
    with pytest.raises(InputError, match="outside its parameter"):
        cutegemm.load(path)


def test_the_same_kernels_make_the_same_file(saved, tmp_path):
    """Saving twice gives the same bytes: nothing of the time or the machine's memory is in the file."""
    gemm, path = saved["unaligned rows"]
    assert (
        gemm.save(tmp_path / "again.cutegemm", [CASES["unaligned rows"][1]]).read_bytes() == path.read_bytes()
    )


def test_loading_needs_neither_torch_nor_the_dsl(saved):
    """`load` imports neither; they are missing where the file is only looked at."""
    code = (
        "import sys, cutegemm; x = cutegemm.load(sys.argv[1]); print(x.problems[0].m, x);"
        "bad = [m for m in ('torch', 'cutlass') if m in sys.modules]; sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(saved["plain"][1])], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("100 <artefact of GemmSpec(tile=Tile(m=128, n=64, k=64))")


def test_build_many_builds_in_order():
    """A list of specs, or of specs with problems, gives Gemms whose kernels are ready."""
    of = problem(100, 72, 136)
    first, second = cutegemm.build_many([SPEC, (SPEC, of)])
    assert first.plan.problem == problem(4096, 4096, 4096) and second.plan.problem == of
    with pytest.raises(InputError, match="must be a list of specs"):
        cutegemm.build_many(SPEC)
    with pytest.raises(cutegemm.GemmError, match=r"specs\[0\]=3: must be a list of specs"):
        cutegemm.build_many([3])


def test_nothing_to_save_is_refused(tmp_path):
    """An artefact holds at least one problem."""
    with pytest.raises(InputError, match="at least one problem"):
        cutegemm.build(SPEC, problem(100, 72, 136)).save(tmp_path / "x", [])
