// SPDX-License-Identifier: Apache-2.0
// Stage 02, coalesced: consecutive threads lie along a row of D.
//
// Idea      Swap the two lines that turn a thread's number into its row and column. A warp's 32
//           loads of B, and its 32 stores of D, then fall into one line of 128 bytes, and its load
//           of A is one element broadcast to all.
// Changes   Sectors per warp-wide load: A 32 -> 1, B 1 -> 4, D 32 -> 4. The arithmetic intensity stays
//           0.25 FLOP/byte: fewer transactions, not fewer bytes asked for.
// Measured  4096^3, fp32: 6.47 TFLOP/s, 13% of cuBLAS; README.md, stage 02.
// Answers   "Optimising GEMM on NVIDIA H100", coalesced: 4.2 TFLOP/s, 8.2 % of cuBLAS;
//           "Learn CUTLASS the hard way": 7.6 times the naive kernel.
#include "common.cuh"

constexpr int BM = 32;
constexpr int BN = 32;
constexpr int THREADS = BM * BN;

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(int M, int N, int K, float alpha, const float* A, int64 lda, const float* B, int64 ldb,
     float beta, const float* C, int64 ldc, float* D, int64 ldd) {
  const int row = blockIdx.y * BM + threadIdx.x / BN;
  const int col = blockIdx.x * BN + threadIdx.x % BN;  // consecutive threads: consecutive columns
  if (row >= M || col >= N) return;

  float acc = 0;
  for (int k = 0; k < K; ++k) {
    acc += A[offset<A_COL>(row, k, lda)] * B[offset<B_COL>(k, col, ldb)];
  }
  D[row * ldd + col] = blend(alpha, acc, beta, C, row * ldc + col);
}
