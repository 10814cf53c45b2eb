// SPDX-License-Identifier: Apache-2.0
// Stage 01, naive: one thread computes one element of D; consecutive threads lie along a column.
//
// Idea      The definition of a matrix product, one dot product a thread. Neighbouring threads take
//           neighbouring rows, so a warp's load of A touches 32 rows at once.
// Changes   Nothing is reused: 2 FLOP need 2 operands of 4 bytes, 0.25 FLOP/byte. A warp-wide load of
//           A is 32 sectors of 32 bytes for 128 useful bytes; a store of D is the same.
// Measured  4096^3, fp32: 0.499 TFLOP/s, 1% of cuBLAS; README.md, stage 01.
// Answers   "Learn CUTLASS the hard way", naive: 0.65 TFLOP/s on an RTX 4090, 0.8 % of PyTorch.
#include "common.cuh"

constexpr int BM = 32;
constexpr int BN = 32;
constexpr int THREADS = BM * BN;

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(int M, int N, int K, float alpha, const float* A, int64 lda, const float* B, int64 ldb,
     float beta, const float* C, int64 ldc, float* D, int64 ldd) {
  const int row = blockIdx.y * BM + threadIdx.x % BM;  // consecutive threads: consecutive rows
  const int col = blockIdx.x * BN + threadIdx.x / BM;
  if (row >= M || col >= N) return;

  float acc = 0;
  for (int k = 0; k < K; ++k) {
    acc += A[offset<A_COL>(row, k, lda)] * B[offset<B_COL>(k, col, ldb)];
  }
  D[row * ldd + col] = blend(alpha, acc, beta, C, row * ldc + col);
}
