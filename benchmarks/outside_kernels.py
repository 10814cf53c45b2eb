# SPDX-License-Identifier: Apache-2.0
"""Runs kernels of other projects on the emulator, from the user's checkouts: results, findings, coverage, times.

    git clone https://github.com/pranjalssh/fast.cu && git clone https://github.com/NVIDIA/cutlass
    python -m benchmarks.outside_kernels --fast-cu fast.cu --cutlass cutlass --out benchmarks/results/sweeps

Needs nvcc 13 and a C++ compiler, but no GPU: host code is linked with `outside/capture.cpp`, which records launches.
This repository contains no code of those projects. Writes emulator_outside.json and prints a table.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from benchmarks import command_line
from cutegemm.emulator import Buffer, Launch, Module, Options, run_sequence
from cutegemm.emulator.state import tensors
from cutegemm.emulator.watch.findings import BY_THE_LETTER
from cutegemm.errors import EmulatorError

HERE = Path(__file__).parent / "outside"
# CUtensorMapDataType -> type of a tensor map and its bytes (cuda.h).
KINDS = {0: "u8", 1: "u16", 2: "u32", 6: "f16", 7: "f32", 9: "bf16"}
MAP_FIXED, MAP_PRIVATE_ANONYMOUS, READ_WRITE = 0x10, 0x22, 3
TOLERANCE = 1e-2  # relative; D is rounded to bf16, and small integers are multiplied
ORDERS = {
    "eager": Options(races=True, max_seconds=500),
    "lazy": Options(races=True, policy="lazy", max_seconds=500),
    "random": Options(races=True, policy="random", seed=1, max_seconds=500),
}


@dataclass(frozen=True)
class Case:
    """A kernel: project, name, driver in `outside/`, compiler flags, problem, layout of B and D."""

    project: str
    name: str
    driver: str
    flags: tuple[str, ...]
    shape: tuple[int, int, int]
    d_by_columns: bool
    b_by_k: bool = False  # B as (K, N), else as (N, K)


@dataclass
class Row:
    """The results of a kernel: correctness and findings by order of completion, CPU seconds, coverage gaps."""

    project: str
    name: str
    commit: str
    shape: tuple[int, int, int]
    right: dict[str, bool] = field(default_factory=dict)
    found: dict[str, list[str]] = field(default_factory=dict)
    strict: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    gaps: list[str] = field(default_factory=list)
    error: str = ""


def fast_cu(checkout: Path) -> list[Case]:
    """Kernels 1 to 11 of fast.cu."""
    out = []
    for n in range(1, 12):
        header = checkout / "examples" / "matmul" / f"matmul_{n}.cuh"
        flags = ("-DNDEBUG", f"-DKERNEL={n}", f'-DHEADER="{header}"')
        # from 6 on the scheduler rasters groups of 16 x 8 tiles
        shape = (128, 128, 64) if n == 1 else (256, 256, 192) if n < 6 else (2048, 2048, 448)
        out.append(Case("fast.cu", str(n), "fast_cu.cu", flags, shape, n > 1, n == 1))
    return out


def cutlass(checkout: Path) -> list[Case]:
    """Cooperative, pingpong and plain warp-specialized kernels of the collective builder, with and without clusters."""
    include = ("-I", str(checkout / "include"), "-I", str(checkout / "tools" / "util" / "include"))
    schedules = {  # mainloop, epilogue
        "cooperative": ("KernelTmaWarpSpecializedCooperative", "TmaWarpSpecializedCooperative"),
        "pingpong": ("KernelTmaWarpSpecializedPingpong", "TmaWarpSpecialized"),
        "warp-specialised": ("KernelTmaWarpSpecialized", "TmaWarpSpecialized"),
    }
    out = []
    for name, (schedule, epilogue) in schedules.items():
        for cluster in ((1, 1), (2, 1), (2, 2)):
            tile = (128, 128) if name == "cooperative" else (64, 128)
            flags = (
                *include, "--expt-relaxed-constexpr", f"-DSCHEDULE={schedule}", f"-DEPILOGUE={epilogue}",
                f"-DCLUSTER_M={cluster[0]}",
                f"-DCLUSTER_N={cluster[1]}", f"-DTILE_M={tile[0]}", f"-DTILE_N={tile[1]}",
            )  # fmt: skip
            label = f"{name} {cluster[0]}x{cluster[1]}"
            out.append(Case("CUTLASS", label, "cutlass_gemm.cu", flags, (392, 264, 328), False))
    return out


def build(case: Case, folder: Path) -> tuple[Path, str]:
    """Program and PTX of a case."""
    program = folder / "program"
    target = ("-gencode", "arch=compute_90a,code=compute_90a", "-cudart", "none")
    sources = (str(HERE / case.driver), str(HERE / "capture.cpp"))
    kept = ("--keep", "--keep-dir", str(folder), "-o", str(program))
    command = ["nvcc", "-std=c++17", "-O2", "-lineinfo", *target, *case.flags, *sources, *kept]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        raise EmulatorError(f"{case.project} {case.name}: nvcc failed\n{made.stderr[:2000]}")
    return program, (folder / case.driver.replace(".cu", ".ptx")).read_text()


def capture(case: Case, folder: Path) -> tuple[list[Launch], list[np.ndarray]]:
    """The launches of a case's host code, and its allocations, mapped at the same addresses."""
    program, text = build(case, folder)
    module = Module.parse(text)
    lines = [
        f"{k.name} {len(k.params)} {' '.join(str(p.size) for p in k.params)}" for k in module.kernels.values()
    ]
    (folder / "parameters").write_text("\n".join(lines))
    subprocess.run(
        [program, *map(str, case.shape)], env={"CAPTURE": str(folder)}, check=True, stdout=subprocess.DEVNULL
    )
    maps = (
        [_map(line) for line in (folder / "maps").read_text().splitlines()]
        if (folder / "maps").exists()
        else []
    )
    launches: list[Launch] = []
    arrays: list[np.ndarray] = []
    for n in range(len(list(folder.glob("launch.*")))):
        head, raw = (folder / f"launch.{n}").read_bytes().split(b"\n", 1)
        name, *rest = head.decode().split()
        numbers = [int(x) for x in rest]
        memory, arrays, buffers, at = (folder / f"memory.{n}").read_bytes(), [], [], 0
        for i in range(numbers[11]):
            line, raw = raw.split(b"\n", 1)
            address, size = (int(x) for x in line.split())
            arrays.append(_mapped(address, size))
            arrays[-1][:] = np.frombuffer(_with_maps(memory[at : at + size], maps), np.uint8)
            buffers.append(Buffer(address, size, f"allocation {i}"))
            at += size
        kernel, params = module.kernel(name), []
        for p in kernel.params:
            params.append(_with_maps(raw[: p.size], maps))
            raw = raw[p.size :]
        grid, block, cluster = numbers[:3], numbers[3:6], numbers[6:9]
        launches.append(
            Launch(
                kernel,
                grid=grid,
                block=block,
                cluster=cluster,
                smem_bytes=numbers[9],
                params=params,
                buffers=buffers,
                pdl=bool(numbers[10]),
            )
        )
    return launches, arrays


def _map(line: str) -> bytes:
    kind, rank, base, *v = (int(x) for x in line.split())
    made = tensors.TensorMap(
        base,
        KINDS[kind],
        tuple(v[:rank]),
        tuple(v[rank : 2 * rank - 1]),
        tuple(v[2 * rank - 1 : 3 * rank - 1]),
        v[-1],
    )
    return tensors.encode(made)


def _with_maps(raw: bytes, maps: list[bytes]) -> bytes:
    """Bytes with every placeholder of `capture.cpp` replaced by its tensor map."""
    out = bytearray(raw)
    for m in re.finditer(b"TMAPTMAP", raw):
        number = int.from_bytes(raw[m.end() : m.end() + 4], "little")
        out[m.start() : m.start() + 128] = maps[number]
    return bytes(out)


def _mapped(address: int, size: int) -> np.ndarray:
    """Memory at an address of the captured program; replaces an earlier mapping."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    made = libc.mmap(address, size + 4096, READ_WRITE, MAP_PRIVATE_ANONYMOUS | MAP_FIXED, -1, 0)
    if made != address:
        raise EmulatorError(f"no memory of {size} bytes at {address:#x}")
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


def _values(raw: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """bf16 bytes as fp64."""
    words = raw[: 2 * shape[0] * shape[1]].view(np.uint16).astype(np.uint32) << 16
    return words.view(np.float32).astype(np.float64).reshape(shape)


def examine(
    row: Row, launches: list[Launch], d: np.ndarray, values: Callable[[], np.ndarray], want: np.ndarray
) -> None:
    """Run launches in every order and once with strict rules; `values` reads the result from the bytes `d`."""
    for order, options in {**ORDERS, "plain": Options()}.items():
        d[:] = 0xFF
        started = time.process_time()
        result = run_sequence(launches, options)
        row.seconds[order] = round(time.process_time() - started, 2)
        row.right[order] = bool(np.abs(values() - want).max() <= TOLERANCE * np.abs(want).max())
        if options.races:
            row.found[order] = [str(f) for f in result.findings]
            row.gaps = [] if result.coverage is None else result.coverage.gaps
    strict = Options(races=True, policy="lazy", strict=True, max_seconds=500)
    row.strict = [str(f) for f in run_sequence(launches, strict).findings if f.label == BY_THE_LETTER]


def run(case: Case, commit: str) -> Row:
    """Run a case in every order with the race detector, and once with strict rules."""
    row = Row(case.project, case.name, commit, case.shape)
    m, n, k = case.shape
    with tempfile.TemporaryDirectory() as folder:
        try:
            launches, arrays = capture(case, Path(folder))
            b = _values(arrays[1], (k, n)) if case.b_by_k else _values(arrays[1], (n, k)).T
            want = _values(arrays[0], (m, k)) @ b
            d = lambda: _values(arrays[2], (n, m)).T if case.d_by_columns else _values(arrays[2], (m, n))  # noqa: E731
            examine(row, launches, arrays[2], d, want)
        except (EmulatorError, subprocess.CalledProcessError) as e:
            row.error = str(e)
    return row


def commit_of(checkout: Path) -> str:
    """The commit of a checkout; its name if it is not a repository."""
    made = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True)
    return made.stdout.strip()[:10] or checkout.name


def main() -> None:
    """Run the command."""
    parser = command_line.parser("outside_kernels", __doc__)
    parser.add_argument("--fast-cu", type=Path)
    parser.add_argument("--cutlass", type=Path)
    parser.add_argument("--only", default="", help="run cases whose project and name start with this")
    parser.add_argument("--out", type=Path, help="folder of emulator_outside.json")
    given = parser.parse_args()
    cases = [(c, commit_of(given.fast_cu)) for c in fast_cu(given.fast_cu.resolve())] if given.fast_cu else []
    if given.cutlass:
        cases += [(c, commit_of(given.cutlass)) for c in cutlass(given.cutlass.resolve())]
    chosen = [(c, commit) for c, commit in cases if f"{c.project} {c.name}".startswith(given.only)]
    report((run(case, commit) for case, commit in chosen), given.out)


def report(rows: Iterable[Row], out: Path | None) -> None:
    """Print rows as they come, and write them."""
    kept = []
    head = "project, commit | kernel | M×N×K | right | findings | by the letter | CPU s plain | CPU s races"
    print(f"| {head} |\n{'| --- ' * 8}|")
    for row in rows:
        kept.append(row)
        shape, found = "×".join(map(str, row.shape)), max((len(f) for f in row.found.values()), default=0)
        cells = (f"{row.project} {row.commit}", row.name, shape, not row.error and all(row.right.values()), found,
                 len(row.strict), row.seconds.get("plain"), row.seconds.get("eager"))  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        for text in dict.fromkeys((row.error, *(f for some in row.found.values() for f in some))):
            if text:
                print("   ", text[:600], flush=True)
    if out:
        text = json.dumps([asdict(row) for row in kept], indent=1)
        (out / "emulator_outside.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
