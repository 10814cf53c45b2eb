// SPDX-License-Identifier: Apache-2.0
// Stage 22, split-K with a workspace: each part of K keeps its own sums, a second kernel adds them.
//
// Idea      Instead of adding into one tile, every CTA stores its sums in its own slab of workspace. A
//           second kernel adds the slabs in a fixed order and writes D: the same bits every time, no
//           counters, and the reduction has threads of its own.
// Changes   Workspace from one tile to one per split: BM*BN*4 bytes written and read a split, in L2. One
//           launch more.
// Measured  128 x 128 x 16384, bf16: 49.4 TFLOP/s, 78% of cuBLAS; README.md, stage 22.
// Answers   "Modern GPU Matmul Optimization", two-kernel split-K with workspace reduction.
#include "common.cuh"

constexpr int BM = 128;
constexpr int BN = 128;
constexpr int BK = 64;
constexpr int STAGES = 4;
constexpr int CONSUMERS = 2;
constexpr int THREADS = 128 * (1 + CONSUMERS);
constexpr int A_BYTES = BM * BK * 2;
constexpr int B_BYTES = BK * BN * 2;
constexpr int SMEM = 1024 + STAGES * (A_BYTES + B_BYTES);

// The second launch: a thread adds one quad of a tile over all splits. blockIdx.z is the quad, and thread t
// stands for the consumers' thread t. (It comes first because NVRTC 13.5 crashes on the other order.)
extern "C" __global__ void __launch_bounds__(CONSUMERS * 128)
reduce(int M, int N, int splits, float alpha, const float* sums, float beta, const half16* C, int64 ldc, half16* D,
       int64 ldd) {
  const int output_tile = blockIdx.y * gridDim.x + blockIdx.x, quad = blockIdx.z;
  const int64 slab = int64(gridDim.x) * gridDim.y * BM * BN / 4;  // in float4
  const float4* from = reinterpret_cast<const float4*>(sums) + int64(output_tile) * (BM * BN / 4) +
                       quad * CONSUMERS * 128 + threadIdx.x;
  float acc[4] = {};
#pragma unroll 8
  for (int split = 0; split < splits; ++split) {
    const float4 v = from[split * slab];
    acc[0] += v.x, acc[1] += v.y, acc[2] += v.z, acc[3] += v.w;
  }
  const int row0 = blockIdx.y * BM + threadIdx.x / 128 * 64;
  store_accumulator({M, N, alpha, beta, C, ldc, D, ldd}, acc, row0, blockIdx.x * BN + quad * 8);
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, int M, int N, int K,
     float* sums) {
  extern __shared__ char smem[];
  __shared__ Barrier full[STAGES], empty[STAGES];
  char* ring = smem + (-smem_address(smem) & 1023);  // a swizzled tile starts at a multiple of 1024 bytes
  const int row0 = blockIdx.y * BM;
  const int col0 = blockIdx.x * BN;
  const int per_split = ceil_div(ceil_div(K, BK), gridDim.z);  // this CTA's part of K, in tiles
  const int first = blockIdx.z * per_split;
  const int tiles = min(per_split, ceil_div(K, BK) - first);
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
      load_operand<A_MN_MAJOR, BM, BK>(As, &map_a, &full[slot], row0, (first + tile) * BK);
      load_operand<B_MN_MAJOR, BN, BK>(As + A_BYTES, &map_b, &full[slot], col0, (first + tile) * BK);
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

  // Quad q of thread t lies at (q * 256 + t) * 4 of the slab of this tile and split.
  const int output_tile = blockIdx.y * gridDim.x + blockIdx.x, thread = threadIdx.x - 128;
  const int64 slab = int64(blockIdx.z) * gridDim.x * gridDim.y + output_tile;
  float4* tile_sums = reinterpret_cast<float4*>(sums + slab * BM * BN) + thread;
#pragma unroll
  for (int i = 0; i < BN / 2; i += 4)
    tile_sums[i / 4 * CONSUMERS * 128] = {acc[i], acc[i + 1], acc[i + 2], acc[i + 3]};
}
