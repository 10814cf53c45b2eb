# SPDX-License-Identifier: Apache-2.0
"""Each check of `doctor` with its fault planted: what it says, and the command that fixes it."""

import hashlib
import shlex
import sqlite3
from importlib.metadata import Distribution

import pytest

from cutegemm.cli import gpus
from cutegemm.cli.facts import health
from cutegemm.cli.gpus import DriverGpu, DriverInfo
from tests.support.command import document, run

H200 = DriverGpu("NVIDIA H200", (9, 0), 132, 60 << 20)
HEALTHY = DriverInfo((13, 0), (H200,))
CUDA = ("2.13.0", "13.0")


def wheel(folder, name, version, files):
    """An installed wheel: its metadata, and a record of files with their contents' digests."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    rows = [
        f"{path},sha256={hashlib.sha256(text.encode()).hexdigest()},{len(text)}"
        for path, text in files.items()
    ]
    for path, text in files.items():
        # since Python 3.12 files that are not there are left out
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (info / "RECORD").write_text("\n".join(rows) + "\n")
    return Distribution.at(info)


def dsl(folder, *parts, version="4.8.1"):
    """The DSL's main wheel, and others of (name, version, files)."""
    main = wheel(folder, health.DSL, version, {"a.py": "main"})
    return [main, *(wheel(folder, f"{health.DSL}-{name}", v, files) for name, v, files in parts)]


def test_a_healthy_machine_needs_nothing(tmp_path):
    """No finding, no command."""
    checks = [
        health.check_python((3, 12)),
        health.check_driver(HEALTHY, CUDA),
        health.check_gpu(HEALTHY),
        *health.check_wheels(dsl(tmp_path, ("libs-base", "4.8.1", {"b.py": "base"}))),
        health.check_torch(CUDA, HEALTHY),
        health.check_folder("kernel cache", tmp_path / "kernels"),
    ]
    assert {x.status for x in checks} == {health.OK} and not any(x.fix for x in checks)


@pytest.mark.parametrize(
    "check, says, fix",
    [
        (health.check_python((3, 9)), "3.9: 3.10 or newer", "python3.12 -m venv"),
        (
            health.check_driver(DriverInfo((12, 2), (H200,)), CUDA),
            "runs CUDA up to 12.2; torch",
            "cuda-drivers",
        ),
        (
            health.check_driver(DriverInfo((13, 0), (), "cuInit: CUDA_ERROR_UNKNOWN"), CUDA),
            "does not start",
            "nvidia-smi",
        ),
        (health.check_torch(None, HEALTHY), "not installed", "pip install 'torch>=2.11'"),
        (
            health.check_torch(("2.13.0+cpu", None), HEALTHY),
            "built without CUDA, and there is a GPU",
            "--index-url",
        ),
    ],
)
def test_a_fault_of_the_machine_is_found(check, says, fix):
    """A Python, driver or package that is too old, broken or missing is a finding, with the command that mends it."""
    assert check.status == health.FINDING and says in check.message and fix in check.fix


def test_no_gpu_is_a_note():
    """Neither a missing driver nor a missing GPU needs anything done."""
    nothing = DriverInfo(None, (), "no library")
    checks = [
        health.check_driver(nothing, CUDA),
        health.check_gpu(nothing),
        health.check_torch(("2", None), nothing),
    ]
    assert {x.status for x in checks} == {health.NOTE}


@pytest.mark.parametrize(
    "capability, lacks", [((8, 0), "wgmma, TMA and clusters"), ((10, 0), "tcgen05"), ((7, 5), "sm_90a")]
)
def test_another_gpu_is_told_what_it_lacks(capability, lacks):
    """A GPU that is not Hopper is named with what our kernels need and it has not."""
    check = health.check_gpu(DriverInfo((13, 0), (DriverGpu("another", capability, 100, 1),)))
    assert check.status == health.NOTE and "another" in check.message and lacks in check.message


def test_a_gpu_without_a_record_is_a_note():
    """A part of an H200 is planned for by its own figures, and doctor says so."""
    check = health.check_gpu(DriverInfo((13, 0), (DriverGpu("NVIDIA H200", (9, 0), 60, 1),)))
    assert check.status == health.NOTE and "60 SMs: no record" in check.message


def test_wheels_that_overwrite_each_other_are_found(tmp_path):
    """Two wheels with different files at one path: the default libraries give way to those of CUDA 13."""
    path = "nvidia_cutlass_dsl/lib/x.so"
    both = dsl(
        tmp_path, ("libs-base", "4.8.1", {path: "cu12"}), ("libs-cu13", "4.8.1", {path: "cu13", "y": "1"})
    )
    check = health.check_wheels(both)[1]
    assert (
        check.status == health.FINDING
        and f"such as {path}" in check.message
        and "install 1 different" in check.message
    )
    assert check.fix == (
        "pip uninstall -y nvidia-cutlass-dsl-libs-base && "
        "pip install --force-reinstall --no-deps nvidia-cutlass-dsl-libs-cu13==4.8.1"
    )


def test_the_same_file_twice_is_no_fault(tmp_path):
    """Two wheels may bring one file if it is the same."""
    both = dsl(tmp_path, ("libs-base", "4.8.1", {"x": "1"}), ("libs-cu13", "4.8.1", {"x": "1"}))
    assert [x.status for x in health.check_wheels(both)] == [health.OK, health.OK]


def test_wheels_of_other_versions_are_found(tmp_path):
    """The DSL's wheels are of one version, and of one that the kernels are made for."""
    mixed = health.check_wheels(dsl(tmp_path / "mixed", ("libs-base", "4.8.0", {"z": "1"})))[0]
    assert "libs-base is 4.8.0" in mixed.message and "nvidia-cutlass-dsl-libs-base==4.8.1" in mixed.fix
    later = health.check_wheels(dsl(tmp_path / "later", version="4.9.0"))[0]
    assert (
        "kernels are made for >=4.8.1,<4.9" in later.message
        and later.fix == f"pip install '{health.REQUIRED}'"
    )
    missing = health.check_wheels([])
    assert missing[0].status == health.FINDING and "not installed" in missing[0].message


def test_a_cache_that_others_may_write_is_found(tmp_path):
    """A folder that is not safe is not used, which doctor says with the chmod that makes it safe."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    folder.chmod(0o777)
    check = health.check_folder("kernel cache", folder)
    assert check.status == health.FINDING and "may be written by others" in check.message
    assert check.fix == f"chmod go-w {folder}"


def test_a_cache_that_cannot_be_written_is_found(tmp_path, monkeypatch):
    """A folder that is a file, or that refuses us, makes every kernel compile again."""
    (tmp_path / "kernels").write_text("")
    check = health.check_folder("kernel cache", tmp_path / "kernels")
    assert check.status == health.FINDING and "CUTEGEMM_CACHE_DIR" in check.fix
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert health.check_folder("kernel cache", tmp_path / "none").status == health.FINDING


def test_a_damaged_database_is_found(tmp_path, monkeypatch):
    """A file that is not a database is to be moved away; one that is shows its entries."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    assert "nothing tuned yet" in health.check_database(tmp_path).message
    path = tmp_path / "tuned.sqlite"
    path.write_bytes(b"not a database, " * 100)
    check = health.check_database(tmp_path)
    assert check.status == health.FINDING and check.fix == f"mv {path} {path}.damaged"
    path.unlink()
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE entries (x)")
    assert health.check_database(tmp_path).message.endswith("0 entries")


def test_missing_tools_are_found(monkeypatch):
    """NVRTC, headers and nvdisasm are findings with the package that brings them."""

    def missing():
        raise OSError("no libnvrtc")

    check = health.check_call("nvrtc", missing, "pip install nvidia-cuda-nvrtc")
    assert check.status == health.FINDING and "no libnvrtc" in check.message and check.fix.endswith("nvrtc")
    monkeypatch.setattr("cutegemm.compiling.resources.nvdisasm", lambda: None)
    assert health.check_nvdisasm().fix == "pip install nvidia-cuda-nvdisasm"


def test_torch_s_build_is_read_without_importing_it(tmp_path, monkeypatch):
    """Version and CUDA come from torch's own file."""
    torch = pytest.importorskip("torch")
    assert health.torch_build() == (str(torch.__version__), torch.version.cuda)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '9.9'\ncuda: Optional[str] = '13.0'\n")
    (tmp_path / "torch" / "__init__.py").write_text("")

    class Spec:
        submodule_search_locations = [str(tmp_path / "torch")]

    monkeypatch.setattr("importlib.util.find_spec", lambda name: Spec)
    assert health.torch_build() == ("9.9", "13.0")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert health.torch_build() is None


def test_doctor_ends_with_its_findings(monkeypatch):
    """Status 0 and no command where nothing needs fixing; else 1, and each command on a line of its own."""
    monkeypatch.setattr(health, "examine", lambda: health.Health([health.Check("x", health.OK, "fine")]))
    assert run("doctor").splitlines() == ["ok  x  fine", "", "nothing to fix"]
    broken = health.Health(
        [health.Check("x", health.FINDING, "broken " * 30, "fix it"), health.Check("y", health.NOTE, "")]
    )
    monkeypatch.setattr(health, "examine", lambda: broken)
    text = run("doctor", status=1)
    assert "\n  fix it\n" in text and text.endswith("1 to fix\n")
    assert document("doctor", status=1)["checks"][0]["fix"] == "fix it"


def test_a_driver_that_nothing_can_ask_is_a_finding():
    """Without cuda-python the driver is unknown, and the line for pip is given."""
    found = health.check_driver(DriverInfo(None, (), "cannot be imported", "cuda-python"), None)
    assert found.status == health.FINDING and "cuda-python>=12.9" in found.fix


def test_doctor_looks_at_everything():
    """Each thing is looked at once, here, and whatever is to be fixed comes with its command."""
    found = health.examine()
    names = [x.name for x in found.checks]
    assert names == ["python", "driver", "gpu", "DSL", "DSL files", "torch", "kernel cache", "database", "nvrtc",
                     "CUDA headers", "nvdisasm"]  # fmt: skip
    assert all(bool(x.fix) == (x.status == health.FINDING) for x in found.checks)


class FakeDriver:
    """CUDA's driver of one H200, as cuda-python gives it."""

    class CUdevice_attribute:  # noqa: N801
        """The attributes that are asked for; here each is its value."""

        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 9
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 0
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 132
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 60 << 20

    class Status(int):
        """A status with a name."""

        name = "CUDA_ERROR_NO_DEVICE"

    def __init__(self, broken=False):
        self.broken = broken

    def cuDriverGetVersion(self):  # noqa: N802
        return 0, 13010

    def cuInit(self, flags):  # noqa: N802
        return (self.Status(100 if self.broken else 0),)

    def cuDeviceGetCount(self):  # noqa: N802
        return 0, 1

    def cuDeviceGet(self, index):  # noqa: N802
        return 0, index

    def cuDeviceGetName(self, size, handle):  # noqa: N802
        return 0, b"NVIDIA H200\0\0\0"

    def cuDeviceGetAttribute(self, value, handle):  # noqa: N802
        return 0, value


def test_the_driver_is_asked(monkeypatch):
    """Its version, and each GPU's name, capability, SMs and L2; a driver without a GPU says why."""
    assert gpus._queried(FakeDriver()) == DriverInfo((13, 1), (H200,))
    assert gpus._queried(FakeDriver(broken=True)) == DriverInfo((13, 1), (), "cuInit: CUDA_ERROR_NO_DEVICE")
    monkeypatch.setattr(gpus, "driver_info", lambda: HEALTHY)
    device, source = gpus.device_here()
    assert (device.name, source) == ("NVIDIA H200", "this machine's")


def test_the_commands_that_fix_have_quoted_paths(tmp_path, monkeypatch):
    """A folder with blanks and a question mark is one word of the shell, and its database is opened."""
    folder = tmp_path / "my cache?"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels").chmod(0o777)
    words = shlex.split(health.check_folder("kernel cache", folder / "kernels").fix)
    assert words == ["chmod", "go-w", str(folder / "kernels")]
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(folder))
    path = folder / "tuned.sqlite"
    path.write_bytes(b"no database" * 99)
    assert shlex.split(health.check_database(folder).fix) == ["mv", str(path), f"{path}.damaged"]
    path.unlink()
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE entries (x)")
    assert health.check_database(folder).status == health.OK
