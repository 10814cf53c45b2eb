# SPDX-License-Identifier: Apache-2.0
"""Records of GPUs: found by name, or made of a GPU's own properties; the limits that they share."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from cutegemm import GemmSpec, problem
from cutegemm.arch import sm90
from cutegemm.arch.architectures import ARCHITECTURES, DEFAULT
from cutegemm.arch.records import H100, H200, RECORDS, find
from cutegemm.planning.planner import plan
from cutegemm.plans.kernel_plan import KernelPlan


@pytest.mark.parametrize("record", RECORDS, ids=lambda x: x.name)
def test_a_known_gpu_is_found_by_its_name(record):
    """Name and SMs as the driver gives them name one record, whatever else is known."""
    assert find(record.name, sms=record.sms, l2_bytes=1, dram_gbs=1.0) is record


@pytest.mark.parametrize("record", RECORDS, ids=lambda x: x.name)
def test_a_record_is_whole(record):
    """Every figure is positive, and as many clusters of one CTA fit as there are SMs."""
    assert record.resident_clusters(1) == record.sms
    assert all(record.resident_clusters(size) * size <= record.sms for size in (1, 2, 4, 8, 16))
    models = (record.cores, record.cost, record.loads)
    assert min(x for model in models for x in dataclasses.astuple(model)) > 0
    assert record.dram_gbs > 1000 and record.l2_bytes > 2**25
    assert ARCHITECTURES[record.limits.name] is record.limits


def test_an_unknown_gpu_says_so():
    """A GPU without a record starts from its own properties, and every plan for it tells whose times it uses."""
    gpu = find("NVIDIA GH200 480GB", sms=132, l2_bytes=7, dram_gbs=3_500.0)
    assert (gpu.name, gpu.sms, gpu.l2_bytes, gpu.dram_gbs) == ("NVIDIA GH200 480GB", 132, 7, 3_500.0)
    reasons = plan(GemmSpec(), problem(64, 64, 64), gpu).reasons
    assert (
        "no record of NVIDIA GH200 480GB: planned with the times of NVIDIA H200 and this GPU's 132 SMs"
        in reasons
    )
    assert not any("record" in x for x in plan(GemmSpec(), problem(64, 64, 64), H200).reasons)


def test_a_part_of_a_gpu_is_not_the_whole():
    """An instance with fewer SMs bears the whole GPU's name; its grid is its own."""
    part = find("NVIDIA H200", sms=16)
    assert (
        part is not H200 and [part.resident_clusters(x) for x in (1, 2)] == [16, 8] and "16 SMs" in part.note
    )
    p = plan(GemmSpec(), problem(4096, 4096, 4096), part)
    assert p.clusters * p.config.cluster_size <= 16 and p.device is part


def test_the_h100_is_not_an_h200_with_another_name():
    """Same architecture and SMs; memory, cache, rates and factors of measured kernels are its own."""
    assert H100.limits is H200.limits and H100.sms == H200.sms
    assert H100.dram_gbs < H200.dram_gbs and H100.l2_bytes < H200.l2_bytes
    assert H100.cost != H200.cost
    # kernels with many stages that were measured with few keep their own factors; splits have none of the H200's
    lost = {x for x in H200.kernels.keys() - H100.kernels.keys() if not x.endswith(" launch")}
    assert all(x.startswith("deep ") and x.replace("deep", "plain") in H100.kernels for x in lost)
    differ = sum(factor != H200.kernels.get(x) for x, factor in H100.kernels.items())
    assert 0 < differ < len(H200.kernels)


def test_limits_are_equal_by_name():
    """A copy that went through a process or a file is the same architecture."""
    again = pickle.loads(pickle.dumps(DEFAULT))
    assert again == DEFAULT and hash(again) == hash(DEFAULT) and again is not DEFAULT
    assert DEFAULT != dataclasses.replace(DEFAULT, name="sm_00")
    assert DEFAULT.smem_bytes == sm90.SMEM_BYTES == 227 * 1024


def test_a_plan_carries_its_device_and_a_config_its_limits():
    """Two GPUs of one architecture may share a kernel: a config knows the limits, not the record."""
    spec = GemmSpec(tile=(128, 128, 64))
    plans: list[KernelPlan] = [plan(spec, problem(256, 256, 256), x) for x in RECORDS]
    assert [x.device for x in plans] == list(RECORDS)
    assert len({x.config for x in plans}) == 1 and plans[0].config.limits is DEFAULT
    assert [x.to_dict()["device"] for x in plans] == [x.name for x in RECORDS]
