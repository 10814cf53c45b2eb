# SPDX-License-Identifier: Apache-2.0
"""The environment record, with NVML faked."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks import environment


class FakeNvml:
    """As much of pynvml as is read; `instant` says whether the driver knows instantaneous power."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_FI_DEV_POWER_INSTANT, NVML_SUCCESS = (
        1,
        2,
        0,
        186,
        0,
    )

    def __init__(self, instant: bool) -> None:
        self.instant = instant
        self.calls: list[str] = []

    def __getattribute__(self, name):
        if name.startswith("nvml"):
            object.__getattribute__(self, "calls").append(name)
        return object.__getattribute__(self, name)

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return uuid

    def nvmlSystemGetDriverVersion(self):
        return "580.1"

    def nvmlDeviceGetClockInfo(self, gpu, clock):
        assert gpu == "GPU-1"
        return {1: 1485, 2: 3201}[clock]

    def nvmlDeviceGetMaxClockInfo(self, gpu, clock):
        return {1: 1980}[clock]

    def nvmlDeviceGetPowerUsage(self, gpu):
        return 300_000

    def nvmlDeviceGetFieldValues(self, gpu, fields):
        assert fields == [186]
        return [SimpleNamespace(nvmlReturn=0 if self.instant else 3, value=SimpleNamespace(uiVal=692_500))]

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu):
        return 700_000

    def nvmlDeviceGetTemperature(self, gpu, sensor):
        return 41


@pytest.mark.parametrize(("instant", "watts"), [(True, 692.5), (False, 300.0)])
def test_state_in_units(instant, watts):
    """Milliwatts become watts; without instantaneous power the average stands in."""
    assert environment.Sensors(FakeNvml(instant), "GPU-1").state() == {
        "driver": "580.1",
        "sm_mhz": 1485,
        "sm_mhz_max": 1980,
        "memory_mhz": 3201,
        "watts": watts,
        "power_limit_watts": 700.0,
        "temperature_c": 41,
    }


def test_sensors_change_nothing():
    """Every NVML call made is a query."""
    nvml = FakeNvml(True)
    environment.Sensors(nvml, "GPU-1").state()
    assert all("Get" in name or name == "nvmlInit" for name in nvml.calls) and len(nvml.calls) > 5


def test_source_digest_sees_content_and_names(tmp_path):
    """The digest changes with a byte, a name or a file, and with nothing else."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.py").write_text("x = 1\n")
    first = environment.source_digest(tmp_path)
    (tmp_path / "notes.txt").write_text("not a source")
    (tmp_path / "emulator").mkdir()
    (tmp_path / "emulator" / "a.py").write_text("no timed call runs this")
    assert environment.source_digest(tmp_path) == first and len(first) == 16
    (tmp_path / "sub" / "a.py").write_text("x = 2\n")
    changed = environment.source_digest(tmp_path)
    (tmp_path / "sub" / "a.py").rename(tmp_path / "sub" / "b.py")
    assert len({first, changed, environment.source_digest(tmp_path)}) == 3


def test_source_digest_covers_the_package():
    """The package's own sources are found."""
    assert (environment.SOURCES / "errors.py").exists()


@pytest.mark.gpu
def test_record_on_the_gpu():
    """The record of a real GPU has plausible clocks and power, and names what torch names."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    record = environment.record("abc", environment.sensors())
    assert record["gpu"] == torch.cuda.get_device_name() and record["commit"] == "abc"
    assert 200 < record["sm_mhz"] <= record["sm_mhz_max"] < 4000
    assert 10 < record["watts"] < 2 * record["power_limit_watts"]
