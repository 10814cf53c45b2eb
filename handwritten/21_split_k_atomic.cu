// SPDX-License-Identifier: Apache-2.0
// Stage 21, split-K with atomics: several CTAs share one tile of D, each with a part of K.
//
// Idea      A product with few tiles and a long K leaves most multiprocessors idle. gridDim.z CTAs take a
//           part of K each and add their sums into one fp32 tile of workspace; the last to finish, known
//           by a counter, turns it into D. The tile lies in accumulator order: every access is 16 bytes
//           a thread, side by side.
// Changes   CTAs from tiles to tiles * splits, k-steps per CTA to K / (BK * splits). Extra traffic in L2:
//           BM*BN*4 bytes a split to add, once to read. The order of the sums varies from run to run.
// Measured  128 x 128 x 16384, bf16: 43.9 TFLOP/s, 69% of cuBLAS; README.md, stage 21.
// Answers   "Modern GPU Matmul Optimization", split-K: 7.1 times, up to 11, at 128 x 128 x 16384.
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

// Adds four neighbouring floats in global memory, without reading them back (red, 9.7.13.8).
__device__ __forceinline__ void add4(float* to, const float* v) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
               : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, int M, int N, int K,
     float alpha, float beta, const half16* C, int64 ldc, half16* D, int64 ldd, float* sums, int* counters) {
  extern __shared__ char smem[];
  __shared__ Barrier full[STAGES], empty[STAGES];
  __shared__ bool last;
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

  // Quad q of thread t lies at (q * 256 + t) * 4 of the tile's workspace.
  const int output_tile = blockIdx.y * gridDim.x + blockIdx.x, thread = threadIdx.x - 128;
  float* tile_sums = sums + int64(output_tile) * BM * BN + thread * 4;
#pragma unroll
  for (int i = 0; i < BN / 2; i += 4) add4(tile_sums + i * CONSUMERS * 128, &acc[i]);

  __threadfence();  // our sums are in memory before we count as finished
  named_barrier(1, CONSUMERS * 128);
  if (thread == 0) last = atomicAdd(&counters[output_tile], 1) == gridDim.z - 1;
  named_barrier(1, CONSUMERS * 128);
  if (!last) return;
  __threadfence();  // the other CTAs' sums are read after their count
#pragma unroll
  for (int i = 0; i < BN / 2; i += 4) {
    const float4 sum = __ldcg(reinterpret_cast<const float4*>(tile_sums + i * CONSUMERS * 128));
    acc[i] = sum.x, acc[i + 1] = sum.y, acc[i + 2] = sum.z, acc[i + 3] = sum.w;
  }
  store_accumulator({M, N, alpha, beta, C, ldc, D, ldd}, acc, row0 + m0, col0);
}
