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
constexpr u64 LATE = 2000000;  // cycles, about a millisecond

// Two consumers each raise to 240 registers where the pool of 384 x 168 has room for one. Does the second get them when
// the first has ended? out[warpgroup] = cycles until it went on.
extern "C" __global__ void __launch_bounds__(384, 1) registers_of_an_ended_warpgroup(u64* out) {
    const u64 start = now();
    const int group = threadIdx.x / 128;
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        delay(4 * LATE);
    } else {
        if (group == 2) delay(LATE);
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        if (group == 1) delay(2 * LATE);
    }
    if (threadIdx.x % 128 == 0) out[group] = now() - start;
}

// The same, but the producer ends instead of giving back: does a warpgroup that ends return what it was launched with?
extern "C" __global__ void __launch_bounds__(256, 1) registers_of_an_ended_producer(u64* out) {
    const u64 start = now();
    const int group = threadIdx.x / 128;
    if (group == 0) {
        delay(LATE);
        if (threadIdx.x == 0) out[0] = now() - start;
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 256;");
    if (threadIdx.x % 128 == 0) out[1] = now() - start;
}

// Who is elected: of all lanes, of lanes 5 to 31 in a branch, of a membership that leaves out lanes 0 to 7.
extern "C" __global__ void elected(u64* out) {
    u32 leader, chosen;
    const u32 lane = threadIdx.x;
#define ELECT(members)                                                                                          \
    asm volatile("{ .reg .pred p; elect.sync %0|p, %2; selp.u32 %1, 1, 0, p; }" : "=r"(leader), "=r"(chosen) : "r"(members))
    ELECT(0xffffffffu);
    if (chosen) out[0] = lane * 100 + leader;
    if (lane >= 5) {
        ELECT(0xffffffe0u);
        if (chosen) out[1] = lane * 100 + leader;
    }
    if (lane >= 8) {
        ELECT(0xffffff00u);
        if (chosen) out[2] = lane * 100 + leader;
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

// Each CTA stores 16 KiB by a bulk copy and ends without waiting; the next CTA on its SM fills the same shared memory
// with its own number. out[2 + 2048 * cta + i]: what arrived (out[0], out[1] are not used).
extern "C" __global__ void bulk_store_without_a_wait(u64* out) {
    extern __shared__ __align__(128) u64 data[];
    for (int i = threadIdx.x; i < 2048; i += blockDim.x) data[i] = blockIdx.x;
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0)
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16384; cp.async.bulk.commit_group;" ::"l"(
                         out + 2 + 2048 * (u64)blockIdx.x),
                     "r"(shared_address(data))
                     : "memory");
}

// The four warps of a warpgroup each write a quarter of the operands and multiply at once, with a proxy fence of their
// own and no barrier; warp `late` comes late. All ones: D is 16 everywhere. out[thread] = D of the thread, times 64.
extern "C" __global__ void products_of_what_other_warps_wrote(u64* out, int late) {
    extern __shared__ __align__(1024) unsigned short operand[];
    for (int i = threadIdx.x; i < 16384; i += blockDim.x) operand[i] = 0;
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    const int warp = threadIdx.x / 32;
    if (warp == late) delay(LATE);
    for (int i = threadIdx.x % 32; i < 4096; i += 32) operand[warp * 4096 + i] = 0x3f80;
    asm volatile("fence.proxy.async;" ::: "memory");
    const u32 base = shared_address(operand);
    const u64 a = (base >> 4 & 0x3fff) | 1ull << 16 | 8ull << 32;
    const u64 b = ((base + 16384) >> 4 & 0x3fff) | 1ull << 16 | 8ull << 32;
    float d[4] = {0, 0, 0, 0};
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(a), "l"(b));
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
    out[threadIdx.x] = (u64)((d[0] + d[1] + d[2] + d[3]) * 16);
}

// bar.sync by the two halves of a warp, one after the other: out[lane] = cycles until the lane went on.
extern "C" __global__ void barrier_in_divergent_code(u64* out) {
    const u64 start = now();
    if (threadIdx.x % 32 < 16)
        asm volatile("bar.sync 0;" ::: "memory");
    else {
        delay(LATE);
        asm volatile("bar.sync 0;" ::: "memory");
    }
    out[threadIdx.x] = now() - start;
}

// shfl of a lane that is in another branch: out[lane] for lanes 0 to 7 = what they read of lane 20 (which holds 120).
extern "C" __global__ void shuffle_from_an_inactive_lane(u64* out) {
    const u32 lane = threadIdx.x;
    u32 mine = lane + 100, got = 0;
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
