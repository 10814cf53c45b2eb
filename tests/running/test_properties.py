# SPDX-License-Identifier: Apache-2.0
"""A GPU without a record starts from what it says of itself, which is asked once and kept."""

from __future__ import annotations

import contextlib
import types

import pytest
import torch

from cutegemm import GemmSpec, problem
from cutegemm.arch.records import H200, RECORD_MHZ
from cutegemm.planning.planner import plan
from cutegemm.running.backends import properties

NAME = "NVIDIA GH200 480GB"


class FakeGpu:
    """Says what it was told to, and counts."""

    def __init__(self):
        self.copies = 0

    def clusters(self, size):
        """One graphics processing cluster has an odd SM."""
        return {1: 120, 2: 58, 4: 27, 8: 0}[size]

    def clock_mhz(self):
        """Half the record's."""
        return RECORD_MHZ / 2

    def copy_seconds(self, size):
        """3,500 GB/s, the first time slower."""
        self.copies += 1
        return 2 * size / 3.5e12 * (2 if self.copies == 1 else 1)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Answers are kept in a directory of the test's own."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(properties, "_ASKED", {})
    return tmp_path


def forbidden():
    """Nobody is to be asked."""
    raise AssertionError("asked")


def test_an_unknown_gpu_is_asked_once():
    """Clusters, clock and bandwidth are its own; the plan says so; the next process reads what was kept."""
    gpu = FakeGpu()
    found = properties.device_for(NAME, 120, 7, lambda: gpu)
    assert found.clusters == ((1, 120), (2, 58), (4, 27)) and found.dram_gbs == pytest.approx(3500)
    assert found.cost.mma == pytest.approx(2 * H200.cost.mma)
    assert found.cost.l2 == pytest.approx(H200.cost.l2 / 2)
    assert (
        found.loads.shift == pytest.approx(H200.loads.shift / 2) and found.loads.stage == 2 * H200.loads.stage
    )
    assert (found.sms, found.l2_bytes, found.cost.launch) == (120, 7, H200.cost.launch)
    note = (
        f"no record of {NAME}: planned with the times of NVIDIA H200 and this GPU's 120 SMs, "
        "its own clusters, 3,500 GB/s, 990 MHz"
    )
    assert note in plan(GemmSpec(), problem(64, 64, 64), found).reasons
    assert gpu.copies == properties.COPIES
    assert properties.device_for(NAME, 120, 7, forbidden) == found
    properties._ASKED.clear()
    assert properties.device_for(NAME, 120, 7, forbidden) == found


def test_a_known_gpu_is_not_asked():
    """A record is taken as it is."""
    assert properties.device_for("NVIDIA H200", 132, 1, forbidden) is H200


ANSWER = '{"NVIDIA GH200 480GB, 120 SMs": {"clusters": %s, "clock_mhz": %s, "dram_gbs": %s}}'
DAMAGED = [
    "",
    "[]",
    '{"NVIDIA GH200 480GB, 120 SMs": {"clusters": []}}',
    ANSWER % ("[[1, 0]]", 1980, 3000),
    ANSWER % ("[[1, 120]]", '"fast"', 3000),
    ANSWER % ("[[1, 120]]", 1980, "1e999"),
    ANSWER % ("[[1, 120]]", "NaN", 3000),
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_answer_is_asked_again(folder, text):
    """What cannot be read, or is no figure of a GPU, is replaced."""
    (folder / properties.FILE).write_text(text)
    found = properties.device_for(NAME, 120, 7, FakeGpu)
    assert found.dram_gbs == pytest.approx(3_500) and found.clusters[0] == (1, 120)
    assert properties.device_for(NAME, 120, 7, forbidden) == found


def test_a_gpu_that_does_not_answer_is_planned_for_all_the_same():
    """A driver's error is told, and the figures of the default stand in."""

    class Broken(FakeGpu):
        def clusters(self, size):
            raise RuntimeError("no driver")

    with pytest.warns(RuntimeWarning, match="cannot query the properties of .*: no driver"):
        found = properties.device_for(NAME, 120, 7, Broken)
    assert found.dram_gbs == H200.dram_gbs and found.note.endswith("120 SMs")


def test_nothing_is_asked_within_a_capture(monkeypatch):
    """Asking waits for the device, which would end a CUDA graph's capture: the record's figures serve until later."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.warns(RuntimeWarning, match="a CUDA graph is being captured"):
        found = properties.device_for(NAME, 120, 7, lambda: properties.Gpu(torch.device("cuda")))
    assert found.dram_gbs == H200.dram_gbs
    # and asked once the capture is over
    assert properties.device_for(NAME, 120, 7, FakeGpu).dram_gbs == pytest.approx(3500)


def on_no_gpu(monkeypatch):
    """A GPU of which torch and the driver know nothing."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(synchronize=lambda: None))
    return properties.Gpu(torch.device("cpu"))


def test_the_driver_is_asked_about_one_cluster(monkeypatch):
    """The grid is the cluster, of CTAs that each take all the shared memory that there is."""
    driver, seen = pytest.importorskip("cuda.bindings.driver"), []
    for name in ("cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute", "cuModuleUnload"):
        monkeypatch.setattr(driver, name, lambda *args: (0, None))
    count = lambda function, launch: seen.append(launch) or (0, 5)
    monkeypatch.setattr(driver, "cuOccupancyMaxActiveClusters", count)
    assert on_no_gpu(monkeypatch).clusters(4) == 5
    launch, cluster = seen[0], seen[0].attrs[0].value.clusterDim
    assert (
        (launch.gridDimX, launch.gridDimY, launch.gridDimZ) == (cluster.x, cluster.y, cluster.z) == (4, 1, 1)
    )
    assert launch.sharedMemBytes == H200.limits.smem_bytes


def test_a_copy_is_timed_by_two_events(monkeypatch):
    """Both keep time, whose milliseconds become seconds."""
    asked = []

    class Event:
        """Is recorded at some time."""

        def __init__(self, enable_timing=False):
            asked.append(enable_timing)

        def elapsed_time(self, other):
            """Milliseconds."""
            return 3.0

        record = synchronize = lambda self: None

    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert on_no_gpu(monkeypatch).copy_seconds(64) == pytest.approx(3e-3) and asked == [True, True]
