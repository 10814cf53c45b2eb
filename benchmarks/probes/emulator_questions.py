# SPDX-License-Identifier: Apache-2.0
"""Ask a GPU what PTX leaves open (`emulator_questions.cu`), for the emulator to follow.

    python -m benchmarks.probes.emulator_questions --out tests/emulator/fixtures --commit HASH

Needs torch and NVRTC. Each question runs in a process of its own, so that a fault or a hang (a timeout of 20 s) is an
answer too. Writes questions.json: of each question its outcome ("ran", "hang", or the driver's error) and the first
words of `out`, with the environment of the recording.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".cu")
SECONDS = 20  # after which a kernel counts as hanging
CTAS = 1320  # of the bulk stores: ten for each SM, one after the other

# Question -> (kernel, grid, threads, dynamic shared bytes, words of `out`, further integer argument).
QUESTIONS: dict[str, tuple[str, int, int, int, int, int | None]] = {
    "registers of an ended warpgroup": ("registers_of_an_ended_warpgroup", 1, 384, 0, 3, None),
    "registers of an ended producer": ("registers_of_an_ended_producer", 1, 256, 0, 2, None),
    "elected lanes": ("elected", 1, 32, 0, 3, None),
    "arrival at an ended CTA": ("arrival_at_an_ended_cta", 2, 32, 0, 1, None),
    "bulk store without a wait": ("bulk_store_without_a_wait", CTAS, 128, 200 * 1024, 2 + 2048 * CTAS, None),
    **{
        f"products of what other warps wrote, warp {late} late": (
            "products_of_what_other_warps_wrote", 1, 128, 32768, 128, late)
        for late in range(4)
    },
    "barrier in divergent code": ("barrier_in_divergent_code", 1, 64, 0, 64, None),
    "shuffle from an inactive lane": ("shuffle_from_an_inactive_lane", 1, 32, 0, 32, None),
    "arrivals beyond the count": ("arrivals_beyond_the_count", 1, 32, 0, 3, None),
}  # fmt: skip


def cubin() -> bytes:
    """The kernels, compiled for sm_90a."""
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(SOURCE.read_bytes(), b"emulator_questions.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, 2, [b"--gpu-architecture=sm_90a", b"--std=c++17"])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode())
    out = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
    nvrtc.nvrtcGetCUBIN(program, out)
    return out


def ask(name: str) -> dict[str, object]:
    """Run one question in this process."""
    import ctypes

    import torch
    from cuda.bindings import driver

    kernel, grid, threads, shared, words, extra = QUESTIONS[name]
    out = torch.zeros(words, dtype=torch.int64, device="cuda")
    check = lambda r: (r[1] if len(r) > 1 else None) if not r[0].value else sys.exit(r[0].name)  # noqa: E731
    module = check(driver.cuModuleLoadData(cubin()))
    function = check(driver.cuModuleGetFunction(module, kernel.encode()))
    if shared > 48 * 1024:
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(driver.cuFuncSetAttribute(function, limit, shared))
    values = [ctypes.c_void_p(out.data_ptr()), *([] if extra is None else [ctypes.c_int(extra)])]
    table = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    check(driver.cuLaunchKernel(function, grid, 1, 1, threads, 1, 1, shared, 0, ctypes.addressof(table), 0))
    check(driver.cuCtxSynchronize())
    answer = out.cpu()
    if kernel == "bulk_store_without_a_wait":
        stored = answer[2:].reshape(CTAS, 2048)
        wrong = (stored != torch.arange(CTAS)[:, None]).sum(1)
        return {"outcome": "ran", "wrong CTAs": int((wrong > 0).sum()), "wrong words": int(wrong.sum())}
    return {"outcome": "ran", "out": answer.tolist()}


def ask_apart(name: str) -> dict[str, object]:
    """Run one question in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.probes.emulator_questions", "--ask", name]
    try:
        made = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 40)
    except subprocess.TimeoutExpired:
        return {"outcome": "hang"}
    if made.returncode:
        return {"outcome": (made.stderr.strip().splitlines() or ["failed"])[-1]}
    return dict(json.loads(made.stdout.strip().splitlines()[-1]))


def main() -> None:
    """Ask every question, or the one named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder of questions.json")
    parser.add_argument("--commit", default="", help="hash of the commit that records")
    parser.add_argument("--ask", choices=QUESTIONS, help="ask one question in this process")
    given = parser.parse_args()
    if given.ask:
        print(json.dumps(ask(given.ask)))
        return
    answers = {name: ask_apart(name) for name in QUESTIONS}
    for name, answer in answers.items():
        print(name, answer)
    if given.out:
        from benchmarks import environment

        record = {"environment": environment.record(given.commit, environment.sensors()), "answers": answers}
        (given.out / "questions.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
