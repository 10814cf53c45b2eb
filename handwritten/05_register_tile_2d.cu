// SPDX-License-Identifier: Apache-2.0
// Stage 05, 2-D register tile: a thread owns TM x TN elements of D, an outer product per k.
//
// Idea      Per k a thread loads TM elements of A and TN of B into registers and multiplies each with
//           each: the loads grow with the edge of its cell, the work with the area.
// Changes   FLOP per shared-memory load 2*TM*TN / (TM+TN) = 8 instead of 1.8. Arithmetic intensity
//           BM*BN / (2*(BM+BN)) = 32 FLOP/byte.
// Measured  4096^3, fp32: 24.6 TFLOP/s, 48% of cuBLAS; README.md, stage 05.
// Answers   "Optimising GEMM on NVIDIA H100", 2-D register tile: 19.1 TFLOP/s, 36.8 % of cuBLAS;
//           "Learn CUTLASS the hard way": 30.6 TFLOP/s on an RTX 4090, 38.7 %.
#include "common.cuh"

constexpr int BM = 128;
constexpr int BN = 128;
constexpr int BK = 8;
constexpr int TM = 8;
constexpr int TN = 8;
constexpr int THREADS = BM * BN / (TM * TN);

extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm(int M, int N, int K, float alpha, const float* A, int64 lda, const float* B, int64 ldb,
     float beta, const float* C, int64 ldc, float* D, int64 ldd) {
  __shared__ float As[BM][BK];
  __shared__ float Bs[BK][BN];
  const int a_row = threadIdx.x / BK, a_col = threadIdx.x % BK;  // the first element of A this thread copies
  const int b_row = threadIdx.x / BN, b_col = threadIdx.x % BN;  // the first element of B
  const int row0 = blockIdx.y * BM;
  const int col0 = blockIdx.x * BN;
  const int ty = threadIdx.x / (BN / TN) * TM;  // this thread's first row and column within the tile
  const int tx = threadIdx.x % (BN / TN) * TN;

  float acc[TM][TN] = {};
  for (int k0 = 0; k0 < K; k0 += BK) {
    for (int i = a_row; i < BM; i += THREADS / BK) {
      const int m = row0 + i;
      As[i][a_col] = m < M && k0 + a_col < K ? A[offset<A_COL>(m, k0 + a_col, lda)] : 0;
    }
    for (int i = b_row; i < BK; i += THREADS / BN) {
      const int n = col0 + b_col;
      Bs[i][b_col] = k0 + i < K && n < N ? B[offset<B_COL>(k0 + i, n, ldb)] : 0;
    }
    __syncthreads();

#pragma unroll
    for (int k = 0; k < BK; ++k) {
      float a[TM], b[TN];
      for (int i = 0; i < TM; ++i) a[i] = As[ty + i][k];
      for (int j = 0; j < TN; ++j) b[j] = Bs[k][tx + j];
      for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN; ++j) acc[i][j] += a[i] * b[j];
    }
    __syncthreads();
  }
  for (int i = 0; i < TM; ++i)
    for (int j = 0; j < TN; ++j) {
      const int row = row0 + ty + i, col = col0 + tx + j;
      if (row < M && col < N) D[row * ldd + col] = blend(alpha, acc[i][j], beta, C, row * ldc + col);
    }
}
