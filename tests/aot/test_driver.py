# SPDX-License-Identifier: Apache-2.0
"""Launches through the driver, which is replaced: what a thread without a context gets, and what is refused."""

import pytest

from cutegemm.aot.driver import LoadedKernels, RecipeLauncher
from cutegemm.aot.recipe import KernelBinary, KernelLaunch
from cutegemm.errors import HardwareError

driver = pytest.importorskip("cuda.bindings.driver")

LAUNCH = KernelLaunch(0, (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, False, (bytes(8),), ())
CONTEXT = 7
Result = driver.CUresult


@pytest.fixture
def fake(monkeypatch):
    """A driver whose launches fail unless a context is current; `refuses` is what they answer with one."""

    class Fake:
        current, launches, refuses = 0, 0, Result.CUDA_SUCCESS

    def launch(*_):
        Fake.launches += bool(Fake.current)
        return (Fake.refuses if Fake.current else Result.CUDA_ERROR_INVALID_CONTEXT,)

    def make_current(context):
        Fake.current = context
        return (Result.CUDA_SUCCESS,)

    monkeypatch.setattr(driver, "cuLaunchKernelEx", launch)
    monkeypatch.setattr(driver, "cuCtxSetCurrent", make_current)
    return Fake


def test_a_thread_without_a_context_gets_the_devices(fake):
    """A thread that has not called the CUDA runtime has no context; the launch makes the device's current."""
    launcher = RecipeLauncher(1, LAUNCH, CONTEXT)
    fake.current = 0
    launcher({}, {}, 0)
    assert (fake.current, fake.launches) == (CONTEXT, 1)


def test_what_the_driver_refuses_is_a_hardware_error(fake):
    """Any other answer is raised, and nothing is launched a second time."""
    fake.refuses = Result.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(HardwareError, match="CUDA_ERROR_INVALID_VALUE"):
        RecipeLauncher(1, LAUNCH, CONTEXT)({}, {}, 0)
    assert fake.launches == 1


@pytest.mark.parametrize("old", [False, True])
def test_kernels_are_on_the_device_once_they_are_loaded(fake, monkeypatch, old):
    """Each kernel is loaded at once, not at its first launch, which a graph's capture would refuse."""
    loaded = []

    class Code:
        handle = 5

        @staticmethod
        def from_cubin(cubin):
            return Code()

        def get_kernel(self, name):
            return self

    def load(function):
        if old:
            raise RuntimeError('Function "cuFuncLoad" not found')
        loaded.append(function)
        return (Result.CUDA_SUCCESS,)

    monkeypatch.setattr(pytest.importorskip("cuda.core"), "ObjectCode", Code)
    for name, function in {
        "cuDeviceGet": lambda _: (Result.CUDA_SUCCESS, 0),
        "cuDevicePrimaryCtxRetain": lambda _: (Result.CUDA_SUCCESS, CONTEXT),
        "cuKernelGetFunction": lambda kernel: (Result.CUDA_SUCCESS, ("function of", kernel)),
        "cuFuncLoad": load,
    }.items():
        monkeypatch.setattr(driver, name, function)
    LoadedKernels([KernelBinary("one", b"", ""), KernelBinary("two", b"", "")], 0)
    assert loaded == ([] if old else [("function of", Code.handle)] * 2)
