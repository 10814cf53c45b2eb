// SPDX-License-Identifier: Apache-2.0
// A small warp-specialised GEMM for the emulator's tests: D (fp32, M x N) = A (bf16, M x K) * B (bf16, N x K)^T.
// Warps 0..3 multiply, warp 4 loads; two stages of 64 x 64 tiles by TMA; D leaves by TMA from shared memory.
// Defining one BUG_... macro plants one defect; without any the kernel is correct. No headers are needed.

using u32 = unsigned int;
using u64 = unsigned long long;
struct alignas(64) TensorMap { char bytes[128]; };

constexpr int TILE = 64, STAGES = 2, TILE_BYTES = TILE * TILE * 2;
#ifndef WGMMAS
#define WGMMAS 4  // of a k tile, 16 columns each; fewer are right if A and B end before
#endif
#ifdef BUG_TX_SHORT
constexpr u32 TX = 2 * TILE_BYTES - 16;
#else
constexpr u32 TX = 2 * TILE_BYTES;
#endif

__device__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

__device__ void barrier_init(u32 bar, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

__device__ void barrier_wait(u32 bar, u32 parity) {
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(bar), "r"(parity) : "memory");
}

__device__ void barrier_arrive(u32 bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

__device__ void load_box(u32 to, const TensorMap* map, int x, int y, u32 bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}

__device__ u64 descriptor(u32 address) {  // K-major, 128-byte swizzle, 1024 bytes between groups of 8 rows
#ifdef BUG_SWIZZLE
    return (address >> 4 & 0x3FFF) | 1ull << 16 | 64ull << 32 | 2ull << 62;
#elif defined(BUG_FAR)
    return (address >> 4 & 0x3FFF) | 1ull << 16 | 0x3FFFull << 32 | 1ull << 62;
#elif defined(BUG_STRIDE)
    return (address >> 4 & 0x3FFF) | 1ull << 16 | 32ull << 32 | 1ull << 62;
#else
    return (address >> 4 & 0x3FFF) | 1ull << 16 | 64ull << 32 | 1ull << 62;
#endif
}

__device__ void multiply(float (&d)[32], u64 a, u64 b, int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13,"
        "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
          "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),
          "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(accumulate));
}

struct Shared {
    alignas(1024) char a[STAGES][TILE_BYTES];
    alignas(1024) char b[STAGES][TILE_BYTES];
    alignas(1024) float d[TILE][TILE];
    u64 full[STAGES], empty[STAGES];
};

__device__ void produce(Shared* s, const TensorMap* a, const TensorMap* b, int tiles, int columns, int steps) {
    int stage = 0;
    u32 phase = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x)
        for (int k = 0; k < steps; k++) {
#ifndef BUG_NO_EMPTY_WAIT
            barrier_wait(shared_address(&s->empty[stage]), phase ^ 1);
#endif
            u32 bar = shared_address(&s->full[stage]);
#ifndef BUG_NO_EXPECT
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(TX) : "memory");
#endif
            load_box(shared_address(s->a[stage]), a, k * TILE, tile / columns * TILE, bar);
            load_box(shared_address(s->b[stage]), b, k * TILE, tile % columns * TILE, bar);
            if (++stage == STAGES) { stage = 0; phase ^= 1; }
        }
}

__device__ void store_tile(Shared* s, const float (&d)[32], const TensorMap* map, int row, int column, float* guard) {
    int t = threadIdx.x;
#ifndef BUG_NO_STORE_WAIT
    if (t == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
    asm volatile("bar.sync 1, 128;" ::: "memory");
    for (int i = 0; i < 32; i++)
        s->d[t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8][i / 4 * 8 + t % 4 * 2 + i % 2] = d[i];
#ifdef BUG_OUT_OF_BOUNDS
    if (t == 127) guard[0] = d[0];
#endif
#ifndef BUG_NO_PROXY_FENCE
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
#ifdef BUG_BARRIER_COUNT
    if (t < 96) asm volatile("bar.sync 1, 128;" ::: "memory");
#elif !defined(BUG_NO_BARRIER)
    asm volatile("bar.sync 1, 128;" ::: "memory");
#endif
    if (t == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
                     ::"l"(map), "r"(shared_address(s->d)), "r"(column), "r"(row) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
}

__device__ void consume(Shared* s, const TensorMap* map, int tiles, int columns, int steps, float* guard) {
    int stage = 0;
    u32 phase = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float d[32];
        for (int i = 0; i < 32; i++) d[i] = 0;
        for (int k = 0; k < steps; k++) {
#ifdef BUG_PARITY
            barrier_wait(shared_address(&s->full[stage]), phase ^ 1);
#elif !defined(BUG_NO_FULL_WAIT)
            barrier_wait(shared_address(&s->full[stage]), phase);
#endif
#ifndef BUG_NO_WGMMA_FENCE
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
            u64 a = descriptor(shared_address(s->a[stage])), b = descriptor(shared_address(s->b[stage]));
            for (int i = 0; i < WGMMAS; i++) multiply(d, a + 2 * i, b + 2 * i, 1);
#ifndef BUG_NO_COMMIT
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
#ifdef BUG_LENIENT_WAIT
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
#elif !defined(BUG_NO_WGMMA_WAIT)
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
#ifdef BUG_LOST_ARRIVE
            if (threadIdx.x % 32 == 0 && threadIdx.x != 0) barrier_arrive(shared_address(&s->empty[stage]));
#else
            if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&s->empty[stage]));
#endif
            if (++stage == STAGES) { stage = 0; phase ^= 1; }
        }
        store_tile(s, d, map, tile / columns * TILE, tile % columns * TILE, guard);
    }
#ifndef BUG_NO_FINAL_WAIT
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

extern "C" __global__ void __launch_bounds__(160) gemm(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                                                       const __grid_constant__ TensorMap d, int tiles, int columns, int steps,
                                                       float* guard) {
    extern __shared__ __align__(1024) char raw[];
    Shared* s = reinterpret_cast<Shared*>((reinterpret_cast<u64>(raw) + 1023) / 1024 * 1024);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared_address(&s->full[i]), 1);
#ifdef BUG_INIT_COUNT
            barrier_init(shared_address(&s->empty[i]), 3);
#else
            barrier_init(shared_address(&s->empty[i]), 4);
#endif
        }
#ifndef BUG_NO_INIT_FENCE
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
#ifndef BUG_NO_INIT_BARRIER
    asm volatile("bar.sync 0;" ::: "memory");
#endif
    if (threadIdx.x >= 128) {
        if (threadIdx.x == 128) produce(s, &a, &b, tiles, columns, steps);
    } else {
        consume(s, &d, tiles, columns, steps, guard);
    }
}
