// SPDX-License-Identifier: Apache-2.0
// Stage 03, shared-memory tile: a CTA stages a tile of A and a tile of B and reuses them.
//
// Idea      The CTA's 32 x 32 threads copy a 32 x 32 tile of A and of B into shared memory together,
//           then every element is read from there by 32 threads. Global memory sees it once.
// Changes   Arithmetic intensity from 0.25 to BM*BN / (2*(BM+BN)) = 8 FLOP/byte. Each FMA still needs
//           two loads, now from shared memory: that becomes the limit.
// Measured  4096^3, fp32: 8.23 TFLOP/s, 16% of cuBLAS; README.md, stage 03.
// Answers   "Optimising GEMM on NVIDIA H100", shared-memory tile: 13.9 % of cuBLAS; "cuBLAS Worklog":
//           arithmetic intensity 8.
#include "common.cuh"

constexpr int BM = 32;
constexpr int BN = 32;
constexpr int BK = 32;
constexpr int THREADS = BM * BN;

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(int M, int N, int K, float alpha, const float* A, int64 lda, const float* B, int64 ldb,
     float beta, const float* C, int64 ldc, float* D, int64 ldd) {
  __shared__ float As[BM][BK];
  __shared__ float Bs[BK][BN];
  const int ty = threadIdx.x / BN;  // this thread's row and column within the tile
  const int tx = threadIdx.x % BN;
  const int row = blockIdx.y * BM + ty;
  const int col = blockIdx.x * BN + tx;

  float acc = 0;
  for (int k0 = 0; k0 < K; k0 += BK) {
    As[ty][tx] = row < M && k0 + tx < K ? A[offset<A_COL>(row, k0 + tx, lda)] : 0;
    Bs[ty][tx] = k0 + ty < K && col < N ? B[offset<B_COL>(k0 + ty, col, ldb)] : 0;
    __syncthreads();  // the tile is complete before anyone reads it

    for (int k = 0; k < BK; ++k) acc += As[ty][k] * Bs[k][tx];
    __syncthreads();  // everyone has read the tile before it is overwritten
  }
  if (row < M && col < N) D[row * ldd + col] = blend(alpha, acc, beta, C, row * ldc + col);
}
