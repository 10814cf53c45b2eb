# SPDX-License-Identifier: Apache-2.0
"""The GPU's path of `Gemm.run` on a CPU, with kernels that record their arguments."""

from cutegemm.arch.records import H200
from cutegemm.running import run
from cutegemm.running.backends import launcher


def on_the_gpu(monkeypatch):
    """Calls on CPU tensors take the GPU's path with kernels that record; returns (plans, (config, arguments))."""
    made, launched = [], []

    class Recorded(launcher.Launcher):
        def __init__(self, kind, request):
            made.append(kind.plan)
            super().__init__(kind, request)

    def record(config, index):
        return lambda *args: launched.append((config, tuple(x if type(x) is int else tuple(x) for x in args)))

    monkeypatch.setattr(run, "backend_for", lambda request, named: "gpu")
    monkeypatch.setattr(run, "device_of", lambda device: H200)
    monkeypatch.setattr(run, "Launcher", Recorded)
    monkeypatch.setattr(launcher, "function_for", record)
    # a CPU tensor's device index
    monkeypatch.setattr(launcher, "_current_device", lambda: None)
    monkeypatch.setattr(launcher, "_current_stream", lambda index: 77)
    return made, launched
