# SPDX-License-Identifier: Apache-2.0
"""Plain accesses that meet atomic or volatile ones: planted defects in CUDA kernels, and their correct twins."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from cutegemm.emulator import Kernel, Module, Options, run_ptx
from tests.support.emulator_pipeline import compile_cuda

SOURCE = r"""
extern "C" __global__ void shared_histogram(const int* x, int* out, int* flag) {
    __shared__ int bins[32];
    if (threadIdx.x < 32) bins[threadIdx.x] = 0;
#ifndef BUG
    __syncthreads();
#endif
    atomicAdd(&bins[x[threadIdx.x] & 31], 1);
    __syncthreads();
    if (threadIdx.x < 32) atomicAdd(&out[threadIdx.x], bins[threadIdx.x]);
}

extern "C" __global__ void read_too_early(const int* x, int* out, int* flag) {
    __shared__ int bins[32];
    if (threadIdx.x < 32) bins[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&bins[x[threadIdx.x] & 31], 1);
#ifndef BUG
    __syncthreads();
#endif
    if (threadIdx.x < 32) atomicAdd(&out[threadIdx.x], bins[threadIdx.x]);
}

__device__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

extern "C" __global__ __cluster_dims__(2, 1, 1) void cluster_histogram(const int* x, int* out, int* flag) {
    __shared__ int bins[32];
    if (threadIdx.x < 32) bins[threadIdx.x] = 0;
#ifdef BUG
    __syncthreads();
#else
    cluster_sync();
#endif
    unsigned mine = (unsigned)__cvta_generic_to_shared(&bins[x[threadIdx.x] & 31]), theirs;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(mine), "r"(threadIdx.x & 1));
    asm volatile("red.shared::cluster.add.u32 [%0], 1;" :: "r"(theirs) : "memory");
    cluster_sync();
    if (threadIdx.x < 32) atomicAdd(&out[threadIdx.x], bins[threadIdx.x]);
}

extern "C" __global__ void zeroed_by_one(const int* x, int* out, int* flag) {
#ifdef BUG
    if (blockIdx.x == 0 && threadIdx.x == 0) out[0] = 0;
    __syncthreads();
#endif
    atomicAdd(&out[0], x[threadIdx.x]);
}

template <class Stored, class Loaded, bool FENCED = false>
__device__ void last_block(const int* x, int* parts, int* flag, int* out) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        *(Stored*)&parts[blockIdx.x] = x[blockIdx.x];
#ifndef BUG
        __threadfence();
#endif
        last = atomicInc((unsigned*)flag, gridDim.x) == gridDim.x - 1;
        if (FENCED) __threadfence();
    }
    __syncthreads();
    if (last && threadIdx.x == 32) {
        int sum = 0;
        for (int i = 0; i < gridDim.x; i++) sum += *(Loaded*)&parts[i];
        *out = sum;
        *flag = 0;
    }
}
extern "C" __global__ void last_block_volatile(const int* x, int* out, int* flag) {
    last_block<volatile int, volatile int>(x, out, flag, out + 32);
}
extern "C" __global__ void last_block_volatile_load(const int* x, int* out, int* flag) {
    last_block<int, volatile int>(x, out, flag, out + 32);
}
extern "C" __global__ void last_block_volatile_store(const int* x, int* out, int* flag) {
    last_block<volatile int, int, true>(x, out, flag, out + 32);
}

#ifdef BUG
#define FLAG int
#else
#define FLAG volatile int
#endif
extern "C" __global__ void plain_flag(const int* x, int* out, int* flag) {
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0) { out[0] = 7; __threadfence(); *(FLAG*)flag = 1; }
    } else if (threadIdx.x == 0) {
        while (*(volatile int*)flag == 0) {}
        __threadfence();
        out[1] = out[0];
    }
}

extern "C" __global__ void told_beside(const int* x, int* out, int* flag) {
    // a relaxed counter says that block 0 has released out[0], without a fence; block 1 then waits for that release
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        out[1] = 7;
        asm volatile("atom.add.acq_rel.gpu.u32 %0, [%1], 1;" : "=r"(out[4]) : "l"(out) : "memory");
        atomicAdd(flag, 1);
    } else {
        while (atomicAdd(flag, 0) == 0) {}
        unsigned ready = 0;
        while (ready == 0)
#ifdef BUG
            asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(ready) : "l"(out) : "memory");
#else
            asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(ready) : "l"(out) : "memory");
#endif
        out[2] = ready;
    }
}

extern "C" __global__ void lock(const int* x, int* out, int* flag) {
    if (threadIdx.x == 0) {
        while (atomicCAS(flag, 0, 1) != 0) {}
        __threadfence();
        out[0] += x[0];
        __threadfence();
#ifdef BUG
        *flag = 0;
#else
        atomicExch(flag, 0);
#endif
    }
}
"""
KERNELS = {  # name -> (CTAs, what the planted defect is)
    "shared_histogram": (1, {"uninitialised read", "write-write race", "write-read race"}),
    "read_too_early": (1, {"write-read race", "read-write race"}),
    "cluster_histogram": (
        2,
        {"uninitialised read", "write-write race", "write-read race", "read-write race"},
    ),
    "zeroed_by_one": (3, {"write-write race"}),
    "last_block_volatile": (3, {"missing fence between relaxed accesses"}),
    "last_block_volatile_load": (3, {"write-read race"}),
    "last_block_volatile_store": (3, {"write-read race"}),
    "plain_flag": (2, {"write-read race", "read-write race"}),
    "told_beside": (2, {"missing fence between relaxed accesses"}),
    "lock": (3, {"write-write race", "write-read race"}),
}
ORDERS = [{"policy": "eager"}, {"policy": "lazy"}, *({"policy": "random", "seed": s} for s in range(3))]


@functools.cache
def compiled(name: str, bug: bool) -> Kernel:
    """A kernel with or without its defect."""
    return Module.parse(compile_cuda(SOURCE, *(["-DBUG"] if bug else []))).kernel(name)


def findings(name: str, bug: bool, order: dict) -> list:
    """What a run of 64 threads a CTA finds."""
    x, out, flag = np.arange(64, dtype=np.int32), np.zeros(64, np.int32), np.zeros(1, np.int32)
    options = Options(races=True, resident_ctas=4, **order)
    return run_ptx(
        compiled(name, bug), grid=KERNELS[name][0], block=64, args=[x, out, flag], options=options
    ).findings


@pytest.mark.parametrize("name", KERNELS)
def test_a_plain_access_that_meets_an_unordered_atomic_or_volatile_one_is_found(name):
    """Each planted defect is found under every policy, and named as what it is."""
    for order in ORDERS:
        found = {f.kind for f in findings(name, True, order)}
        assert found and found <= KERNELS[name][1], (order, found)


@pytest.mark.parametrize("name", KERNELS)
def test_ordered_atomics_are_silent(name):
    """The correct twin draws no finding under any policy: barriers, fences and the atomic's own order are enough."""
    for order in ORDERS:
        assert not findings(name, False, order), order
