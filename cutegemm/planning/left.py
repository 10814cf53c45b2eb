# SPDX-License-Identifier: Apache-2.0
"""The time of a kernel that leaves parts of K to a launch of its own, and of that launch.

What such a kernel reads comes from memory for the first time: all clusters of a part want it at once, so that L2 is
bound by the bytes of all SMs together, however few they are. Whichever of memory, L2 and the tensor cores takes longest
hides the others; what is left of them shows where two are near each other. Constants were searched over 40 kernels
with K in parts of suites deep_k and decode on an H200 (benchmarks/NOTES.md, Split-K and deep K).
"""

from __future__ import annotations

import numpy as np

from cutegemm.arch.device import Device
from cutegemm.planning import threaded
from cutegemm.planning.candidates import BLOCK_K
from cutegemm.planning.columns import Column, Table
from cutegemm.problems import Problem

# share of `TimeModel.l2`, times SMs, that L2 delivers of what it reads for the first time
COLD_L2 = 0.8
# bandwidth falls by this power of the share of SMs that stream: 0.94 of it with 107 CTAs at 128 x 10240 x 8192, 0.82
# with 64 at 128 x 8192 x 28672, where 128 CTAs have all (H200)
STREAM_FILL = 0.28
# share of memory's bandwidth where a stage reads 128 bytes of a row at a time, not 256
SHORT_ROWS = 0.975
# of a stage at least, whose barriers are seen by other CTAs
STAGE_NS = 150.0
# elements along K of a part whose loads and products nothing else hides: half of a first ring
BARE_K = 256.0
# how sharply the longest hides the others
HIDES = 8.0
# of the product's end and the adding launch, which begins under it: at least, and without the bytes of the parts, which
# all SMs write and read at this rate
LEAST_ADD_NS = 2500.0
ADD_NS = 500.0
# what an SM reads of them, where they are of few tiles; an adding CTA has 64 rows of eight columns at least
READER_BYTES_PER_NS = 33.0
PARTS_BYTES_PER_NS = 1900.0


def left_ns(problem: Problem, device: Device, of: Table) -> Column:
    """Nanoseconds of each candidate's product and of adding up its parts, without the first launch."""
    time = device.time
    rows = np.where(of.depth > BLOCK_K, 1.0, SHORT_ROWS)
    fill = np.minimum(1.0, of.ctas / device.sms) ** STREAM_FILL
    # a CTA of a tile that is partly padding takes as long as the others
    padded = of.m * of.n * of.tiles / (problem.m * problem.n * problem.batch)
    memory = problem.min_bytes * np.sqrt(padded) / (device.dram_gbs * rows * fill)
    cold = of.traffic / (COLD_L2 * time.l2 * device.sms)
    # an SM's own port, in kernels so short that the clock stays high
    port = of.waves * of.stages * of.delivered / time.l2_lone
    compute = of.waves * of.stages * time.mma * of.m * of.n * (of.depth / BLOCK_K)
    longest: Column = np.maximum(memory, np.maximum(np.maximum(cold, port), compute))
    sums = sum((x / longest) ** HIDES for x in (memory, cold, port, compute))
    left = 4 * of.m * of.n * of.tiles * (of.splits / of.held)
    bare = (memory + cold + compute - longest) * np.minimum(1.0, BARE_K / (of.stages * of.depth))
    loaded = threaded.stage_ns(problem, device, of)
    shifted = np.zeros_like(longest) if loaded is None else of.waves * of.stages * loaded
    product = np.maximum(longest * sums ** (1 / HIDES), of.waves * of.stages * STAGE_NS) + bare
    product = np.maximum(product, shifted)
    readers = np.minimum(device.sms, of.tiles * (of.m / 64) * (of.n / 8))
    added = left / np.minimum(PARTS_BYTES_PER_NS, readers * READER_BYTES_PER_NS)
    found: Column = product + np.maximum(LEAST_ADD_NS, ADD_NS + added)
    return found
