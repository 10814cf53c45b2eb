// SPDX-License-Identifier: Apache-2.0
// Stage 19, staged epilogue: accumulators cross shared memory, C and D move in whole rows.
//
// Idea      A wgmma accumulator gives a warp 8 rows of 16 bytes per access to C and D. After the last
//           tile the ring is free: each consumer lays its 64 x 256 result there (rows padded against
//           bank conflicts) and stores it row by row, 16 bytes a thread. A lane knows which part of C it
//           will need, so it asks for that before the first tile: C arrives while the tiles are multiplied.
// Changes   Sectors per warp access of C and D: from 8 half-used ones (of 32 bytes) for 128 useful bytes
//           to 16 full ones for 512; global accesses per thread from 64 of 4 bytes to 16 of 16. Times that
//           a CTA waits for C: from 64, one after the other, to at most once.
// Measured  4096^3, bf16: 654 TFLOP/s, 95% of cuBLAS; README.md, stage 19.
// Answers   "Optimising GEMM on NVIDIA H100", staged epilogue: without it beta != 0 costs 80 TFLOP/s.
#include "common.cuh"

constexpr int BM = 128;
constexpr int BN = 256;
constexpr int BK = 64;
constexpr int STAGES = 4;
constexpr int PANEL = 8;
constexpr int CONSUMERS = 2;
constexpr int PAD = 8;
constexpr int THREADS = 128 * (1 + CONSUMERS);
constexpr int A_BYTES = BM * BK * 2;
constexpr int B_BYTES = BK * BN * 2;
constexpr int SMEM = 1024 + STAGES * (A_BYTES + B_BYTES);

static_assert(CONSUMERS * 64 * (BN + PAD) * 4 <= STAGES * (A_BYTES + B_BYTES), "the staged tile fits the ring");

// Lays a warp's 16 x BN of accumulators down as rows, in fp32, then stores them row by row; c is this lane's part of C.
__device__ __forceinline__ void store_staged(const Output& out, const float (&acc)[BN / 2], const uint4 (&c)[16], float* staging, int row0,
                                             int col0) {
  constexpr int PITCH = BN + PAD;
  const int lane = threadIdx.x % 32;
  float* at = staging + lane / 4 * PITCH + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < BN / 2; i += 4) {
    *reinterpret_cast<float2*>(at + i * 2) = {acc[i], acc[i + 1]};
    *reinterpret_cast<float2*>(at + i * 2 + 8 * PITCH) = {acc[i + 2], acc[i + 3]};
  }
  __syncwarp();  // the warp's 16 rows are complete before its lanes read each other's part
#pragma unroll
  for (int r = 0; r < 16; ++r) out.eight(row0 + r, col0 + lane * 8, staging + r * PITCH + lane * 8, c[r]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, int M, int N, int K,
     float alpha, float beta, const half16* C, int64 ldc, half16* D, int64 ldd) {
  extern __shared__ char smem[];
  __shared__ Barrier full[STAGES], empty[STAGES];
  char* ring = smem + (-smem_address(smem) & 1023);  // a swizzled tile starts at a multiple of 1024 bytes
  // CTAs in panels: PANEL tiles down, then one to the right, and so on along N; the last panel may be lower.
  const int id = blockIdx.y * gridDim.x + blockIdx.x, panel = id / (PANEL * gridDim.x), within = id % (PANEL * gridDim.x);
  const int height = min(PANEL, int(gridDim.y) - panel * PANEL);
  const int row0 = (panel * PANEL + within % height) * BM, col0 = within / height * BN;
  const int tiles = ceil_div(K, BK);
  const int warpgroup = threadIdx.x / 128;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < STAGES; ++slot) {
      barrier_init(&full[slot], 1);               // the producer's thread, and TMA's bytes
      barrier_init(&empty[slot], CONSUMERS * 4);  // every consumer warp
    }
    barrier_init_fence();
  }
  __syncthreads();

  if (warpgroup == 0) {  // producer
    registers_down<24>();
    if (threadIdx.x != 0) return;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      const int slot = tile % STAGES, round = tile / STAGES;
      char* As = ring + slot * (A_BYTES + B_BYTES);
      barrier_wait(&empty[slot], round & 1 ^ 1);  // waits for the consumers; at once in the first round
      barrier_expect(&full[slot], A_BYTES + B_BYTES);
      load_operand<A_MN_MAJOR, BM, BK>(As, &map_a, &full[slot], row0, tile * BK);
      load_operand<B_MN_MAJOR, BN, BK>(As + A_BYTES, &map_b, &full[slot], col0, tile * BK);
    }
    return;
  }

  registers_up<240>();  // consumers
  const int m0 = (warpgroup - 1) * 64;
  const int warp_m0 = m0 + threadIdx.x % 128 / 32 * 16;  // this warp's 16 rows, in the epilogue too
  const Output out{M, N, alpha, beta, C, ldc, D, ldd};
  uint4 c[16];
#pragma unroll
  for (int r = 0; r < 16; ++r) c[r] = out.eight_of_c(row0 + warp_m0 + r, col0 + threadIdx.x % 32 * 8);

  float acc[BN / 2];  // the first wgmma overwrites it
  for (int tile = 0; tile < tiles; ++tile) {
    const int slot = tile % STAGES, round = tile / STAGES;
    const char* As = ring + slot * (A_BYTES + B_BYTES);
    barrier_wait(&full[slot], round & 1);  // waits for TMA

    wgmma_fence();
    const unsigned long long a = descriptor<A_MN_MAJOR, BK>(As + m0 * BK * 2);  // 64 rows are 8 KB in either major
    const unsigned long long b = descriptor<B_MN_MAJOR, BK>(As + A_BYTES);
#pragma unroll
    for (int k = 0; k < BK / 16; ++k) wgmma(acc, a + k * K_STEP<A_MN_MAJOR>, b + k * K_STEP<B_MN_MAJOR>, tile + k > 0);
    wgmma_commit();
    wgmma_wait<1>();  // the tile before is done: its slot goes back to the producer
    if (tile > 0 && threadIdx.x % 32 == 0) barrier_arrive(&empty[(tile - 1) % STAGES]);
  }
  wgmma_wait<0>();
  named_barrier(1, CONSUMERS * 128);  // both consumers have read the ring before it is written over
  float* staging = reinterpret_cast<float*>(ring) + warp_m0 * (BN + PAD);
  store_staged(out, acc, c, staging, row0 + warp_m0, col0);
}
