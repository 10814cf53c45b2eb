# SPDX-License-Identifier: Apache-2.0
"""The GPU's way of calls on CPU tensors: kernels, device and stream are stand-ins that record."""

import torch

from cutegemm.arch.records import H200
from cutegemm.ops import entry_points, fallback, perceptron, products, program, serve
from cutegemm.ops.gradients import autograd
from cutegemm.running import run
from cutegemm.running.backends import launcher

BF16 = torch.bfloat16
PROGRAMS = (entry_points._PLAIN, entry_points._LINEAR, entry_points._BIASED)


def launches(monkeypatch):
    """The arguments of every launch of calls on CPU tensors, which take the GPU's way."""
    found = []

    def record(config, index):
        return lambda *args: found.append([list(x) if isinstance(x, tuple) else x for x in args])

    monkeypatch.setattr(run, "backend_for", lambda request, named: "gpu")
    monkeypatch.setattr(run, "device_of", lambda device: H200)
    monkeypatch.setattr(launcher, "function_for", record)
    # a CPU tensor's device index
    monkeypatch.setattr(launcher, "_current_device", lambda: None)
    monkeypatch.setattr(launcher, "_current_stream", lambda index: 77)
    monkeypatch.setattr(launcher.tvm_ffi, "convert", list)
    for module in (serve, fallback):
        monkeypatch.setattr(module, "hopper", lambda device: True)
    entry_points._remembered.cache_clear()
    forget()
    yield found
    entry_points._remembered.cache_clear()
    forget()


def forget():
    """No kinds of calls are known, of these programs and of those that are found by their text."""
    for known in (program._programs, products._recent, perceptron._recent):
        known.recent, known._old = {}, {}
    autograd._plain.cache_clear()
    for made in PROGRAMS:
        program.kept(made)
        made.gemm._choose_again()


def r(*shape):
    """Random bf16 elements."""
    return torch.randn(shape).to(BF16)
