# SPDX-License-Identifier: Apache-2.0
"""Asks a GPU what PTX leaves undefined (`emulator_questions.cu`), as a model for the emulator.

    python -m benchmarks.probes.emulator_questions --out tests/emulator/fixtures --commit HASH

Needs torch and NVRTC. Each question runs in its own process, so that a fault or a hang is an answer too. Kernels that
may hang trap after half a second (`watch`); kernels that may disturb later ones come last. questions.json gets for each
question its outcome ("ran", "hang", the driver's error, or other output of the process), the registers per thread, and
`out`, with the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import command_line

SOURCE = Path(__file__).with_suffix(".cu")
SECONDS = 10  # after which a kernel counts as hanging
START = 120  # seconds in which a process must start
CTAS = 528  # of the bulk stores: four per SM, one after the other
STORED = 24576  # words that each CTA stores

# Question -> (kernel, grid, threads, dynamic shared bytes, words of `out`, further integer argument).
QUESTIONS: dict[str, tuple[str, int, int, int, int, int | None]] = {
    "elected lanes": ("elected", 1, 32, 0, 3, None),
    **{
        f"products of what other warps wrote, warp {late} late": (
            "products_of_what_other_warps_wrote", 1, 128, 2304, 128, late)
        for late in range(4)
    },
    "shuffle from an inactive lane": ("shuffle_from_an_inactive_lane", 1, 32, 0, 32, None),
    "bulk store without a wait": ("bulk_store_without_a_wait", CTAS, 128, 8 * STORED, STORED * CTAS, 0),
    "bulk store overwritten at once": ("bulk_store_without_a_wait", CTAS, 128, 8 * STORED, STORED * CTAS, 1),
    "arrivals beyond the count": ("arrivals_beyond_the_count", 1, 32, 0, 3, None),
    "arrival at an ended CTA": ("arrival_at_an_ended_cta", 2, 32, 0, 1, None),
    "registers of an ended warpgroup": ("registers_of_an_ended_warpgroup", 1, 384, 0, 3, None),
    "registers of an ended producer": ("registers_of_an_ended_producer", 1, 384, 0, 3, None),
    "barrier in divergent code": ("barrier_in_divergent_code", 1, 96, 0, 64, None),
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
    stores = kernel == "bulk_store_without_a_wait"
    torch.zeros(1, device="cuda")
    # host memory can be read after a fault too
    out = torch.zeros(words, dtype=torch.int64, **({"device": "cuda"} if stores else {"pin_memory": True}))
    torch.cuda.synchronize()
    check = lambda r: (r[1] if len(r) > 1 else None) if not r[0].value else sys.exit(r[0].name)  # noqa: E731
    module = check(driver.cuModuleLoadData(cubin()))
    function = check(driver.cuModuleGetFunction(module, kernel.encode()))
    attribute = driver.CUfunction_attribute
    check(
        driver.cuFuncSetAttribute(function, attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
    )
    registers = check(driver.cuFuncGetAttribute(attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, function))
    values = [ctypes.c_void_p(out.data_ptr()), *([] if extra is None else [ctypes.c_int(extra)])]
    table = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    check(driver.cuLaunchKernel(function, grid, 1, 1, threads, 1, 1, shared, 0, ctypes.addressof(table), 0))
    limit = time.monotonic() + SECONDS
    running = driver.CUresult.CUDA_ERROR_NOT_READY
    while (status := driver.cuStreamQuery(0)[0]) == running and time.monotonic() < limit:
        time.sleep(0.01)
    outcome = "hang" if status == running else "ran" if not status.value else status.name
    answer: dict[str, object] = {"outcome": outcome, "registers": registers}
    if not stores:
        return answer | {"out": out.tolist()}
    if outcome == "ran":
        wrong = (out.reshape(CTAS, STORED) != 1 + torch.arange(CTAS, device="cuda")[:, None]).sum(1).cpu()
        answer |= {"wrong CTAs": int((wrong > 0).sum()), "wrong words": int(wrong.sum())}
    return answer


def ask_apart(name: str) -> dict[str, object]:
    """Run one question in its own process."""
    command = [sys.executable, "-m", "benchmarks.probes.emulator_questions", "--ask", name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        stdout, stderr = process.communicate(timeout=START + SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return {"outcome": f"no answer within {START + SECONDS} s"}
    lines = stdout.strip().splitlines()
    if not lines:
        return {"outcome": (stderr.strip().splitlines() or ["failed"])[-1]}
    return dict(json.loads(lines[-1]))


def main() -> None:
    """Ask every question, or the one named."""
    parser = command_line.parser("probes.emulator_questions", __doc__)
    parser.add_argument("--out", type=Path, help="folder of questions.json")
    parser.add_argument("--commit", default="", help="hash of the commit that records")
    parser.add_argument("--ask", choices=QUESTIONS, help="ask one question in this process")
    given = parser.parse_args()
    if given.ask:
        print(json.dumps(ask(given.ask)), flush=True)
        # no teardown: a faulted context reports errors, and a hanging one does not end
        os._exit(0)
    answers: dict[str, dict[str, object]] = {}
    for name in QUESTIONS:
        answers[name] = ask_apart(name)
        print(name, answers[name], flush=True)
    if given.out:
        from benchmarks import environment

        record = {"environment": environment.record(given.commit, environment.sensors()), "answers": answers}
        (given.out / "questions.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
