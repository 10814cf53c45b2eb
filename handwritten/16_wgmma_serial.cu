// SPDX-License-Identifier: Apache-2.0
// Stage 16, TMA + WGMMA: Hopper's two units, used one after the other.
//
// Idea      TMA brings a tile into swizzled shared memory and four warps together multiply it with
//           wgmma, which reads both operands from there: no ldmatrix, no fragments. Load, wait,
//           multiply, wait: nothing overlaps within a CTA, only CTAs with one another.
// Changes   Instructions per 64 x 64 x 16 product: from 16 mma.sync and 6 ldmatrix a warp to one wgmma
//           for four warps. Arithmetic intensity BM*BN / (BM+BN) = 32 FLOP/byte.
// Measured  4096^3, bf16: 371 TFLOP/s, 54% of cuBLAS; README.md, stage 16.
// Answers   "Optimising GEMM on NVIDIA H100", TMA + WGMMA: 280 TFLOP/s, 37.8 % of cuBLAS.
#include "common.cuh"

constexpr int BM = 64;
constexpr int BN = 64;
constexpr int BK = 64;
constexpr int PANEL = 8;
constexpr int THREADS = 128;
constexpr int A_BYTES = BM * BK * 2;
constexpr int B_BYTES = BK * BN * 2;
constexpr int SMEM = 1024 + A_BYTES + B_BYTES;

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, int M, int N, int K,
     float alpha, float beta, const half16* C, int64 ldc, half16* D, int64 ldd) {
  extern __shared__ char smem[];
  __shared__ Barrier full;
  char* As = smem + (-smem_address(smem) & 1023);  // a swizzled tile starts at a multiple of 1024 bytes
  char* Bs = As + A_BYTES;
  // CTAs in panels: PANEL tiles down, then one to the right, and so on along N; the last panel may be lower.
  const int id = blockIdx.y * gridDim.x + blockIdx.x, panel = id / (PANEL * gridDim.x), within = id % (PANEL * gridDim.x);
  const int height = min(PANEL, int(gridDim.y) - panel * PANEL);
  const int row0 = (panel * PANEL + within % height) * BM, col0 = within / height * BN;
  if (threadIdx.x == 0) {
    barrier_init(&full, 1);
    barrier_init_fence();
  }
  __syncthreads();

  float acc[BN / 2];  // the first wgmma overwrites it
  const int tiles = ceil_div(K, BK);
  for (int tile = 0; tile < tiles; ++tile) {
    if (threadIdx.x == 0) {
      barrier_expect(&full, A_BYTES + B_BYTES);
      load_operand<A_MN_MAJOR, BM, BK>(As, &map_a, &full, row0, tile * BK);
      load_operand<B_MN_MAJOR, BN, BK>(Bs, &map_b, &full, col0, tile * BK);
    }
    barrier_wait(&full, tile & 1);  // waits for TMA

    wgmma_fence();
    const unsigned long long a = descriptor<A_MN_MAJOR, BK>(As), b = descriptor<B_MN_MAJOR, BK>(Bs);
#pragma unroll
    for (int k = 0; k < BK / 16; ++k) wgmma(acc, a + k * K_STEP<A_MN_MAJOR>, b + k * K_STEP<B_MN_MAJOR>, tile + k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    __syncthreads();  // all four warps have read the tile before it is overwritten
  }
  store_accumulator({M, N, alpha, beta, C, ldc, D, ldd}, acc, row0, col0);
}
