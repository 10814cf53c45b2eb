# SPDX-License-Identifier: Apache-2.0
"""The environment of a measurement: hardware, clocks, power, versions, sources. It changes no settings."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import platform
from pathlib import Path
from types import ModuleType
from typing import Any

NOT_MEASURED = ("emulator", "explain")  # packages that no timed call runs; changes there keep results valid
SOURCES = Path(__file__).resolve().parent.parent / "cutegemm"
DIGEST_LENGTH = 16  # hex digits: 64 bits distinguish all states of a source tree


class Sensors:
    """One GPU's clocks, power and temperature through NVML.

    Args:
        nvml: the `pynvml` module.
        uuid: of the GPU, as NVML writes it ("GPU-...").
    """

    def __init__(self, nvml: ModuleType, uuid: str) -> None:
        nvml.nvmlInit()
        self._nvml = nvml
        self._gpu = nvml.nvmlDeviceGetHandleByUUID(uuid)

    def read(self) -> tuple[int, float]:
        """(SM clock in MHz, power in W) now."""
        return self._nvml.nvmlDeviceGetClockInfo(self._gpu, self._nvml.NVML_CLOCK_SM), self._watts()

    def state(self) -> dict[str, Any]:
        """Driver, clocks in MHz, power and its limit in W, temperature in degrees Celsius."""
        nvml, gpu = self._nvml, self._gpu
        sm_mhz, watts = self.read()
        return {
            "driver": nvml.nvmlSystemGetDriverVersion(),
            "sm_mhz": sm_mhz,
            "sm_mhz_max": nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
            "memory_mhz": nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
            "watts": watts,
            "power_limit_watts": nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3,
            "temperature_c": nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        }

    def _watts(self) -> float:
        """Instantaneous power in W; the plain NVML query averages over a second on this chip (NVML manual)."""
        field = self._nvml.nvmlDeviceGetFieldValues(self._gpu, [self._nvml.NVML_FI_DEV_POWER_INSTANT])[0]
        if field.nvmlReturn == self._nvml.NVML_SUCCESS:
            return float(field.value.uiVal) / 1e3
        return float(self._nvml.nvmlDeviceGetPowerUsage(self._gpu)) / 1e3


def sensors(device: int = 0) -> Sensors:
    """The sensors of torch's CUDA device `device`."""
    import pynvml
    import torch

    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return Sensors(pynvml, uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")


def source_digest(root: Path = SOURCES) -> str:
    """A digest of names and contents of the Python files under `root` that a timed call may run."""
    digest = hashlib.sha256()
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    for name in names:
        if name.split("/")[0] in NOT_MEASURED:
            continue
        content = (root / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:DIGEST_LENGTH]


def select(device: int) -> None:
    """Make torch's CUDA device `device` current.

    Raises:
        ValueError: there is no such device.
    """
    import torch

    count = torch.cuda.device_count()
    if not 0 <= device < count:
        legal = (
            f"one of 0 to {count - 1}" if count else "of a machine with a CUDA device; torch sees none here"
        )
        raise ValueError(f"device={device}: must be {legal}")
    torch.cuda.set_device(device)


def record(commit: str, reader: Sensors, device: int = 0) -> dict[str, Any]:
    """The environment of a results file.

    Args:
        commit: hash of the measured commit; the measuring machine may have no repository.
        reader: the GPU's sensors.
        device: torch's index of the GPU.
    """
    import torch

    gpu = torch.cuda.get_device_properties(device)
    return {
        "gpu": gpu.name,
        "device": device,
        "sms": gpu.multi_processor_count,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "dsl": importlib.metadata.version("nvidia-cutlass-dsl"),
        "python": platform.python_version(),
        **reader.state(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit,
        "sources": source_digest(),
    }


def described(commit: str, device: str) -> dict[str, Any]:
    """The environment of results that depend on no time: the GPU's record, or versions alone on a CPU.

    Args:
        commit: as for `record`.
        device: as torch names it, such as "cpu" or "cuda".
    """
    import torch

    if torch.device(device).type != "cpu":
        return record(commit, sensors())
    return {
        "device": device,
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit,
        "sources": source_digest(),
    }
