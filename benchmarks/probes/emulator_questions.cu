// SPDX-License-Identifier: Apache-2.0
// Questions that PTX leaves open and the emulator has to answer: one kernel each, its answer in `out` (64-bit words).
// Compiled by NVRTC without headers; run by emulator_questions.py, each kernel in a process of its own.
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %clock64;" : "=l"(t));
    return t;
}
__device__ void delay(u64 cycles) {
    for (u64 start = now(); now() - start < cycles;) {
    }
}
__device__ u32 shared_address(const void* p) {
    u64 out;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(out) : "l"((u64)p));
    return (u32)out;
}
constexpr u64 LATE = 2000000;         // cycles, about a millisecond
constexpr u64 LIMIT = 1000000000;  // cycles, about half a second

// Wait for words first, first + step, ... of `out`; a trap after LIMIT turns a kernel that hangs into an error. What was
// written before stays readable, for `out` is memory of the host.
__device__ void watch(volatile u64* out, int first, int count, int step) {
    const u64 start = now();
    for (int i = 0; i < count; ++i)
        while (out[first + i * step] == 0)
            if (now() - start > LIMIT) asm volatile("trap;");
}

// Two consumers each raise to 240 registers where the pool of 384 x 168 has room for one. Does the second get them when
// the first has ended? out[warpgroup] = cycles until it went on: about 2 LATE if so. The producer stays until both have.
extern "C" __global__ void __launch_bounds__(384, 1) registers_of_an_ended_warpgroup(u64* out) {
    const u64 start = now();
    const int group = threadIdx.x / 128;
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        watch(out, 1, 2, 1);
    } else {
        if (group == 2) delay(LATE);
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    }
    const u64 end = now();
    if (group == 1) delay(2 * LATE);
    if (threadIdx.x % 128 == 0) out[group] = end - start;
}

// A warpgroup raises from 128 to 232 registers while nobody gives any back and the SM has 16,384 free: does it get the
// SM's (at once), those of the warpgroup that ends (about LATE), or none (a trap)? out[1] = cycles until it went on.
extern "C" __global__ void __launch_bounds__(512, 1) registers_of_an_ended_producer(u64* out) {
    const u64 start = now();
    const int group = threadIdx.x / 128;
    if (group == 0) {
        delay(LATE);
    } else if (group == 1) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    } else {
        watch(out, 1, 1, 1);
    }
    if (threadIdx.x % 128 == 0) out[group] = now() - start;
}

// Who is elected of all lanes, of lanes 5 to 31 in a branch, of lanes 8 to 31 likewise: out[i] = 10000 + 100 * the lane
// that was elected + the leader it was told.
extern "C" __global__ void elected(u64* out) {
    u32 leader, chosen;
    const u32 lane = threadIdx.x;
#define ELECT(members)                                                                                          \
    asm volatile("{ .reg .pred p; elect.sync %0|p, %2; selp.u32 %1, 1, 0, p; }" : "=r"(leader), "=r"(chosen) : "r"(members))
    ELECT(0xffffffffu);
    if (chosen) out[0] = 10000 + lane * 100 + leader;
    if (lane >= 5) {
        ELECT(0xffffffe0u);
        if (chosen) out[1] = 10000 + lane * 100 + leader;
    }
    if (lane >= 8) {
        ELECT(0xffffff00u);
        if (chosen) out[2] = 10000 + lane * 100 + leader;
    }
}

// CTA 1 of a cluster ends at once; CTA 0 then arrives at an mbarrier in its shared memory. out[0] = 1 when it went on.
extern "C" __global__ void __cluster_dims__(2, 1, 1) arrival_at_an_ended_cta(u64* out) {
    __shared__ u64 bar;
    u32 rank;
    asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&bar)) : "memory");
    asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
    if (rank == 1) return;
    delay(LATE);
    if (threadIdx.x == 0) {
        asm volatile(
            "{ .reg .b32 r; mapa.shared::cluster.u32 r, %0, 1; mbarrier.arrive.shared::cluster.b64 _, [r]; }" ::"r"(
                shared_address(&bar))
            : "memory");
        out[0] = 1;
    }
}

// Each CTA stores 192 KiB by bulk copies and ends without waiting; the next CTA on its SM fills the same shared memory
// with its own number, from the end, which is stored last. out[24576 * cta + i] = what arrived, 1 + cta if nothing was
// lost. With `overwrite` the CTA itself writes zeros at once: words that are lost show that the copies were under way.
extern "C" __global__ void bulk_store_without_a_wait(u64* out, int overwrite) {
    extern __shared__ __align__(128) u64 data[];
    for (int i = 24575 - (int)threadIdx.x; i >= 0; i -= blockDim.x) data[i] = 1 + blockIdx.x;
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 0; i < 24576; i += 2048)
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16384;" ::"l"(
                             out + 24576 * (u64)blockIdx.x + i),
                         "r"(shared_address(data + i))
                         : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
    if (!overwrite) return;
    __syncthreads();
    for (int i = 24575 - (int)threadIdx.x; i >= 0; i -= blockDim.x) data[i] = 0;
    asm volatile("fence.proxy.async;" ::: "memory");
}

// The four warps of a warpgroup each write a part of the operands that the others' products need, fence and multiply at
// once, with no barrier; warp `late` comes late. A and B become ones, D is 16. out[thread] = sum of the thread's four
// elements of D, 64 if every product saw what every warp wrote.
extern "C" __global__ void products_of_what_other_warps_wrote(u64* out, int late) {
    extern __shared__ __align__(1024) unsigned short operand[];
    for (int i = threadIdx.x; i < 1152; i += blockDim.x) operand[i] = 0;
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    const int warp = threadIdx.x / 32;
    if (warp == late) delay(LATE);
    // Without swizzle, K-major: matrices of 8 rows of 8 elements. Of A (64 x 16) the rows of the next warp, of B (16 x 8)
    // four of the 16 k.
    const int rows = (warp + 1) % 4 * 16;
    for (int i = threadIdx.x % 32; i < 256; i += 32)
        operand[i % 16 / 8 * 512 + (rows + i / 16) * 8 + i % 8] = 0x3f80;
    const int k = warp * 4 + threadIdx.x % 4;
    operand[1024 + k / 8 * 64 + threadIdx.x % 32 / 4 * 8 + k % 8] = 0x3f80;
    asm volatile("fence.proxy.async;" ::: "memory");
    const u32 base = shared_address(operand);
    const u64 a = (base >> 4 & 0x3fff) | 64ull << 16 | 8ull << 32;
    const u64 b = ((base + 2048) >> 4 & 0x3fff) | 8ull << 16 | 16ull << 32;
    float d[4] = {0, 0, 0, 0};
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(a), "l"(b));
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");
    out[threadIdx.x] = (u64)(d[0] + d[1] + d[2] + d[3]);
}

// bar.sync by the two halves of each of two warps, one after the other: out[thread] = cycles until the thread went on
// (the first halves early: the barrier counted each half; all late: it waited for the whole warps). Warp 2 watches.
extern "C" __global__ void barrier_in_divergent_code(u64* out) {
    const u64 start = now();
    if (threadIdx.x >= 64) {
        watch(out, threadIdx.x % 32, 2, 32);
        return;
    }
    if (threadIdx.x % 32 < 16)
        asm volatile("bar.sync 1, 64;" ::: "memory");
    else {
        delay(LATE);
        asm volatile("bar.sync 1, 64;" ::: "memory");
    }
    out[threadIdx.x] = now() - start;
}

// shfl of a lane that is in another branch: out[lane] for lanes 0 to 7 = what they read of lane 20 (which holds 120).
extern "C" __global__ void shuffle_from_an_inactive_lane(u64* out) {
    const u32 lane = threadIdx.x;
    u32 mine, got = 0;
    // Volatile: every lane, not only those of the branch, has its number in the register.
    asm volatile("add.u32 %0, %1, 100;" : "=r"(mine) : "r"(lane));
    if (lane < 8) asm volatile("shfl.sync.idx.b32 %0, %1, 20, 31, 0xff;" : "=r"(got) : "r"(mine));
    out[lane] = got;
}

// An mbarrier of one arrival with bytes pending is arrived at three times: out[0], out[1] = phase done before and after
// the bytes have come, out[2] = after one further arrival.
extern "C" __global__ void arrivals_beyond_the_count(u64* out) {
    __shared__ u64 bar;
    if (threadIdx.x) return;
    const u32 at = shared_address(&bar);
    u32 done[3];
#define TEST(i)                                                                                                     \
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }" : "=r"(done[i]) : "r"(at) : "memory")
    asm volatile("mbarrier.init.shared.b64 [%0], 1; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 128;" ::"r"(at)
                 : "memory");
    for (int i = 0; i < 3; ++i) asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory");
    TEST(0);
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 128;" ::"r"(at) : "memory");
    TEST(1);
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory");
    TEST(2);
    for (int i = 0; i < 3; ++i) out[i] = done[i];
}
