# SPDX-License-Identifier: Apache-2.0
"""Records the results of probes and small GEMMs on an H200, as a reference for the emulator.

    python -m benchmarks.emulator_record --out tests/emulator/fixtures --commit HASH

Writes matrix.npz (bit patterns of D), scalar.npz (bit patterns of approximate functions, digests of 256 elements of
exact ones), gemm.npz and tf32.npz (digests of D's rows), kernels.json.xz (launches of the GEMMs), bytes.npz (digests of
rows of D, and of values and scales of `quantize`) and environment.json (of each file). Inputs come from seeds; a digest
of them is stored with each result.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import command_line, environment
from benchmarks import emulator_bytes as eight
from benchmarks import emulator_probes as probes
from benchmarks import emulator_scalars as scalars
from benchmarks import emulator_tf32 as tf32
from benchmarks.emulator_cases import CASES, keep

SEED = 2511
LANES = {True: 4096, False: 512}  # elements per exact and per approximate scalar probe
BLOCK = 256  # threads of a CTA; elements per digest


def digest(*arrays: np.ndarray) -> np.ndarray:
    """Eight bytes that change with the arrays' contents."""
    whole = hashlib.sha256(b"".join(np.ascontiguousarray(x).tobytes() for x in arrays))
    return np.frombuffer(whole.digest()[:8], np.uint8)


def digests(rows: np.ndarray) -> np.ndarray:
    """A digest of each row, (rows, 8)."""
    return np.stack([digest(row) for row in rows])


class Module:
    """PTX on the GPU, compiled by the driver."""

    def __init__(self, ptx: str):
        from cuda.bindings import driver

        self._driver = driver
        self._module = self._check(driver.cuModuleLoadData(ptx.encode() + b"\0"))

    def launch(self, name: str, grid: int, threads: int, arrays: list[np.ndarray]) -> np.ndarray:
        """Run kernel `name` on arrays passed by pointer. Returns the first, which is its output."""
        import ctypes

        driver = self._driver
        kept = [torch.from_numpy(x.view(np.uint8).reshape(-1).copy()).cuda() for x in arrays]
        values = [ctypes.c_void_p(x.data_ptr()) for x in kept]
        table = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        function = self._check(driver.cuModuleGetFunction(self._module, name.encode()))
        self._check(
            driver.cuLaunchKernel(function, grid, 1, 1, threads, 1, 1, 0, 0, ctypes.addressof(table), 0)
        )
        torch.cuda.synchronize()
        return kept[0].cpu().numpy().view(arrays[0].dtype).reshape(arrays[0].shape)

    def _check(self, result: tuple[Any, ...]) -> Any:
        status, *values = result
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"CUDA driver: {status.name}")
        return values[0] if values else None


def matrix_results() -> dict[str, np.ndarray]:
    """D of every matrix probe, and a digest of its inputs."""
    out = {}
    for form in probes.FORMS.values():
        names, a, b, c = probes.problems(form, SEED)
        d = Module(form.ptx).launch(form.name, len(names), form.threads, [np.empty_like(c), a, b, c])
        out[form.name], out[form.name + "/inputs"] = d, digest(a, b, c)
    return out


def scalar_results() -> dict[str, np.ndarray]:
    """Results of every scalar probe, and a digest of its operands."""
    every = {**scalars.EXACT, **scalars.APPROXIMATE}
    module, out = Module(scalars.module(every.values())), {}
    for op, probe in every.items():
        exact = op in scalars.EXACT
        operands = scalars.operands(probe, LANES[exact], SEED)
        result = np.empty(LANES[exact], scalars.UINT[scalars.BITS[probe.result]])
        result = module.launch(probe.name, len(result) // BLOCK, BLOCK, [result, *operands])
        out[op] = digests(result.reshape(-1, BLOCK)) if exact else result
        out[op + "/inputs"] = digest(*operands)
    return out


def gemm_results() -> dict[str, np.ndarray]:
    """Digests of the rows of D of the whole kernels."""
    out = {}
    for name, case in CASES.items():
        out[name] = digests(patterns(case.prepared()().cpu()))
        out[name + "/inputs"] = digest(*(patterns(x) for x in case.operands()))
    return out


def tf32_results() -> dict[str, np.ndarray]:
    """Digests of the rows of D of fp32 operands on the tensor cores."""
    out = {}
    for name, case in tf32.CASES.items():
        out[name] = digests(patterns(tf32.on_gpu(case)))
        out[name + "/inputs"] = digest(*(patterns(x) for x in case.operands()))
    return out


def bytes_results() -> dict[str, np.ndarray]:
    """Digests of the result rows of 8-bit launches."""
    out = {}
    for name, case in eight.CASES.items():
        for i, found in enumerate(case.results(emulated=False)):
            out[f"{name}/{i}"] = digests(np.atleast_1d(patterns(found)))
        out[name + "/inputs"] = digest(*(patterns(x) for x in case.inputs().values()))
    return out


def patterns(x: torch.Tensor) -> np.ndarray:
    """Bit patterns of a CPU tensor."""
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()]).numpy()


RESULTS = {
    "matrix": matrix_results,
    "scalar": scalar_results,
    "gemm": gemm_results,
    "tf32": tf32_results,
    "bytes": bytes_results,
}


def main() -> None:
    """Record on the first GPU."""
    parser = command_line.parser("emulator_record", __doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the fixtures")
    parser.add_argument("--commit", required=True, help="hash of the commit that records")
    parser.add_argument("--only", choices=RESULTS, nargs="+", default=list(RESULTS), help="which files")
    args = parser.parse_args()
    torch.zeros(1, device="cuda")
    args.out.mkdir(parents=True, exist_ok=True)
    where = args.out / "environment.json"
    environments = json.loads(where.read_text()) if where.exists() else {}
    for name in args.only:
        arrays: dict[str, Any] = RESULTS[name]()
        np.savez_compressed(args.out / f"{name}.npz", **arrays)
        environments[f"{name}.npz"] = environment.record(args.commit, environment.sensors())
    if "gemm" in args.only:
        keep(args.out / "kernels.json.xz")
    where.write_text(json.dumps(environments, indent=1) + "\n")


if __name__ == "__main__":
    main()
