// SPDX-License-Identifier: Apache-2.0
// Stage 09, WMMA from global: the tensor cores, fed straight from global memory.
//
// Idea      A warp owns 16 x 16 of D. It loads 16 x 16 fragments of A and B from global memory and
//           multiplies them with one wmma call: 8192 FLOP an instruction instead of 64 a warp-wide FFMA.
// Changes   Arithmetic: 2*16^3 FLOP per call. Reuse: an element fetched serves 16 others, 16*16 / (16+16)
//           = 8 FLOP/byte, and every fragment comes from L1 or L2 at the moment it is needed.
// Measured  4096^3, bf16: 26.7 TFLOP/s, 4% of cuBLAS; README.md, stage 09.
// Answers   "cuBLAS Worklog", WMMA from global: 1.87 TFLOP/s on a T4; "Note 001": 0.10 ms on an H200.
#include "wmma.cuh"

constexpr int BM = 32;
constexpr int BN = 32;
constexpr int THREADS = BM * BN / 256 * 32;

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(int M, int N, int K, float alpha, const half16* A, int64 lda, const half16* B, int64 ldb,
     float beta, const half16* C, int64 ldc, half16* D, int64 ldd) {
  __shared__ alignas(32) float staged[THREADS / 32][16 * 16];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row0 = blockIdx.y * BM + warp / (BN / 16) * 16;
  const int col0 = blockIdx.x * BN + warp % (BN / 16) * 16;
  if (row0 >= M || col0 >= N) return;

  Accumulator acc;
  wmma::fill_fragment(acc, 0);
  for (int k = 0; k < K; k += 16) {
    FragmentA a;
    FragmentB b;
    wmma::load_matrix_sync(a, A + offset<A_COL>(row0, k, lda), lda);
    wmma::load_matrix_sync(b, B + offset<B_COL>(k, col0, ldb), ldb);
    wmma::mma_sync(acc, a, b, acc);
  }

  // Which lane holds which element is not defined: shared memory puts them in order.
  const Output out{M, N, alpha, beta, C, ldc, D, ldd};
  wmma::store_matrix_sync(staged[warp], acc, 16, wmma::mem_row_major);
  __syncwarp();
  for (int i = lane; i < 16 * 16; i += 32) out.element(row0 + i / 16, col0 + i % 16, staged[warp][i]);
}
