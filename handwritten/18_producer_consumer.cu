// SPDX-License-Identifier: Apache-2.0
// Stage 18, producer/consumer: one warpgroup only loads, two only multiply.
//
// Idea      A ring of STAGES tiles with a full and an empty barrier each. The producer runs ahead as far
//           as the ring allows; two consumer warpgroups own 64 of the tile's 128 rows each, so n = 256
//           fits their registers, which setmaxnreg takes from the producer.
// Changes   Load and multiply overlap: time per tile from their sum to their maximum. Arithmetic
//           intensity BM*BN / (BM+BN) = 85 FLOP/byte with 128 accumulators a thread.
// Measured  4096^3, bf16: 615 TFLOP/s, 89% of cuBLAS; README.md, stage 18.
// Answers   "Optimising GEMM on NVIDIA H100", producer/consumer: 463.9 TFLOP/s, 63.1 % of cuBLAS at
//           8192^3, 70.5 % at 4096^3.
#include "common.cuh"

constexpr int BM = 128;
constexpr int BN = 256;
constexpr int BK = 64;
constexpr int STAGES = 4;
constexpr int PANEL = 8;
constexpr int CONSUMERS = 2;
constexpr int THREADS = 128 * (1 + CONSUMERS);
constexpr int A_BYTES = BM * BK * 2;
constexpr int B_BYTES = BK * BN * 2;
constexpr int SMEM = 1024 + STAGES * (A_BYTES + B_BYTES);

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
  store_accumulator({M, N, alpha, beta, C, ldc, D, ldd}, acc, row0 + m0, col0);
}
