// SPDX-License-Identifier: Apache-2.0
// Stage 17, WGMMA shapes: a wider instruction, and two of them for each tile of B.
//
// Idea      wgmma reads B from shared memory once for its 64 rows, whatever n is: n from 32 to 256 (build
//           with -DWGMMA_N=...) and a tile of 128 rows, done as two m-steps, change the reuse alone.
// Changes   Shared-memory bytes that wgmma reads per FLOP: (64 + n) / (64 * n), from 1/21 at n = 32 to
//           1/51 at n = 256. Arithmetic intensity 128*BN / (128+BN): 43, 43, 64, 85 FLOP/byte (n = 32
//           shares its tile with n = 64: only the instruction differs). Accumulators per thread: BN.
//           At 256 they do not fit the 255 registers and spill.
// Measured  4096^3, bf16: n32 364, n64 404, n128 511, n256 50.3 TFLOP/s, 74% of cuBLAS; README.md, stage 17.
// Answers   "Optimising GEMM on NVIDIA H100", WGMMA shapes: 407.7 TFLOP/s, 56.9 % of cuBLAS; n = 256 in
//           one warpgroup collapses to 70.
#include "common.cuh"

#ifndef WGMMA_N
#define WGMMA_N 128
#endif
constexpr int BM = 128;
constexpr int BN = (WGMMA_N + 63) / 64 * 64;
constexpr int BK = 64;
constexpr int PANEL = 8;
constexpr int THREADS = 128;
constexpr int A_BYTES = BM * BK * 2;
constexpr int B_BYTES = BK * BN * 2;
constexpr int SMEM = 1024 + A_BYTES + B_BYTES;
constexpr int STEPS_M = BM / 64;
constexpr int STEPS_N = BN / WGMMA_N;
// Descriptor steps from one 64 of m, or one n, to the next, in units of 16 bytes.
constexpr unsigned long long M_STEP = 64 * BK * 2 / 16;
constexpr unsigned long long N_STEP = B_MN_MAJOR ? WGMMA_N * 2 / 16 : WGMMA_N * BK * 2 / 16;

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

  float acc[STEPS_M][STEPS_N][WGMMA_N / 2];  // the first wgmma overwrites it
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
    for (int k = 0; k < BK / 16; ++k)
#pragma unroll
      for (int m = 0; m < STEPS_M; ++m)
#pragma unroll
        for (int n = 0; n < STEPS_N; ++n)
          wgmma(acc[m][n], a + m * M_STEP + k * K_STEP<A_MN_MAJOR>, b + n * N_STEP + k * K_STEP<B_MN_MAJOR>,
                tile + k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    __syncthreads();  // all four warps have read the tile before it is overwritten
  }
  const Output out{M, N, alpha, beta, C, ldc, D, ldd};
#pragma unroll
  for (int m = 0; m < STEPS_M; ++m)
#pragma unroll
    for (int n = 0; n < STEPS_N; ++n) store_accumulator(out, acc[m][n], row0 + m * 64, col0 + n * WGMMA_N);
}
