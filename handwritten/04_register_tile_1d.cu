// SPDX-License-Identifier: Apache-2.0
// Stage 04, 1-D register tile: a thread owns TM rows of one column of D.
//
// Idea      One element of B, once in a register, serves TM rows: the thread keeps TM sums instead of
//           one (thread coarsening). The CTA's tile grows to 64 x 64 with the same threads.
// Changes   Shared-memory loads per FMA from 2 to (TM+1)/TM = 1.125. Arithmetic intensity
//           BM*BN / (2*(BM+BN)) = 16 FLOP/byte.
// Measured  4096^3, fp32: 15.8 TFLOP/s, 31% of cuBLAS; README.md, stage 04.
// Answers   "Optimising GEMM on NVIDIA H100", 1-D register tile: 12.2 TFLOP/s; "Learn CUTLASS the hard
//           way": 3.0 times the stage before; "Note 001", thread coarsening: 8.5 to 6.7 ms on a T4.
#include "common.cuh"

constexpr int BM = 64;
constexpr int BN = 64;
constexpr int BK = 8;
constexpr int TM = 8;
constexpr int THREADS = BM * BN / TM;

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(int M, int N, int K, float alpha, const float* A, int64 lda, const float* B, int64 ldb,
     float beta, const float* C, int64 ldc, float* D, int64 ldd) {
  static_assert(BM * BK == THREADS && BK * BN == THREADS, "each thread copies one element of A and one of B");
  __shared__ float As[BM][BK];
  __shared__ float Bs[BK][BN];
  const int a_row = threadIdx.x / BK, a_col = threadIdx.x % BK;  // the element of A this thread copies
  const int b_row = threadIdx.x / BN, b_col = threadIdx.x % BN;  // the element of B
  const int row0 = blockIdx.y * BM;
  const int col0 = blockIdx.x * BN;
  const int ty = threadIdx.x / BN * TM;  // this thread's first row and its column within the tile
  const int tx = threadIdx.x % BN;

  float acc[TM] = {};
  for (int k0 = 0; k0 < K; k0 += BK) {
    const int m = row0 + a_row, n = col0 + b_col;
    As[a_row][a_col] = m < M && k0 + a_col < K ? A[offset<A_COL>(m, k0 + a_col, lda)] : 0;
    Bs[b_row][b_col] = k0 + b_row < K && n < N ? B[offset<B_COL>(k0 + b_row, n, ldb)] : 0;
    __syncthreads();

#pragma unroll
    for (int k = 0; k < BK; ++k) {
      const float b = Bs[k][tx];
      for (int i = 0; i < TM; ++i) acc[i] += As[ty + i][k] * b;
    }
    __syncthreads();
  }
  for (int i = 0; i < TM; ++i) {
    const int row = row0 + ty + i, col = col0 + tx;
    if (row < M && col < N) D[row * ldd + col] = blend(alpha, acc[i], beta, C, row * ldc + col);
  }
}
