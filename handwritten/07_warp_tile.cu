// SPDX-License-Identifier: Apache-2.0
// Stage 07, warp tile: each warp owns a compact 64 x 64 part of the CTA's tile.
//
// Idea      A level between CTA and thread. Within its 64 x 64 a warp's lanes form a 4 x 8 grid, and a
//           thread's 16 x 8 cell is cut into groups of 4 that lie a whole warp row apart, so that one
//           128-bit load of the warp reads neighbouring vectors only, each wanted by several lanes.
// Changes   FLOP per shared-memory load 2*TM*TN / (TM+TN) = 10.7 instead of 8. A warp's load of B
//           covers 128 bytes without a bank conflict; before, its 16 vectors lay 32 bytes apart and
//           met in pairs.
// Measured  4096^3, fp32: 44.3 TFLOP/s, 86% of cuBLAS; README.md, stage 07.
// Answers   "Optimising GEMM on NVIDIA H100", warp tile: 41.4 TFLOP/s, about 80 % of cuBLAS; "Learn
//           CUTLASS the hard way": 45.8 TFLOP/s on an RTX 4090, 54.4 %.
#include "common.cuh"

constexpr int BM = 128;
constexpr int BN = 128;
constexpr int BK = 16;
constexpr int WM = 64;
constexpr int WN = 64;
constexpr int TM = 16;
constexpr int TN = 8;
constexpr int PAD = 4;
constexpr int THREADS = BM * BN / (TM * TN);

__device__ __forceinline__ float4 load4(const float* p, bool inside) {
  return inside ? *reinterpret_cast<const float4*>(p) : float4{};
}

// Four neighbouring elements of D at once.
__device__ __forceinline__ void store4(float* D, float alpha, const float* acc, float beta, const float* C) {
  float4 d = {alpha * acc[0], alpha * acc[1], alpha * acc[2], alpha * acc[3]};
  if (beta != 0) {
    const float4 c = *reinterpret_cast<const float4*>(C);
    d.x += beta * c.x, d.y += beta * c.y, d.z += beta * c.z, d.w += beta * c.w;
  }
  *reinterpret_cast<float4*>(D) = d;
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
gemm(int M, int N, int K, float alpha, const float* A, int64 lda, const float* B, int64 ldb,
     float beta, const float* C, int64 ldc, float* D, int64 ldd) {
  __shared__ alignas(16) float As[BK][BM + PAD];  // transposed
  __shared__ alignas(16) float Bs[BK][BN];
  const int a_row = threadIdx.x / (BK / 4), a_col = threadIdx.x % (BK / 4) * 4;  // first vector of A to copy
  const int b_row = threadIdx.x / (BN / 4), b_col = threadIdx.x % (BN / 4) * 4;  // first vector of B
  const int row0 = blockIdx.y * BM;
  const int col0 = blockIdx.x * BN;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Lanes 4 x 8, numbered so that A's address ignores bit 0 of the lane and B's ignores bit 1: a
  // 128-bit load takes two passes instead of four when lanes i and i ^ 1 (or i ^ 2) agree.
  const int lane_m = lane >> 1 & 1 | lane >> 3 & 2;
  const int lane_n = lane & 1 | lane >> 1 & 6;
  const int ty = warp / (BN / WN) * WM + lane_m * 4;  // first row and column of this thread's groups
  const int tx = warp % (BN / WN) * WN + lane_n * 4;
  constexpr int STEP_M = WM / (TM / 4), STEP_N = WN / (TN / 4);  // distance between a thread's groups

  float acc[TM][TN] = {};
  for (int k0 = 0; k0 < K; k0 += BK) {
#pragma unroll
    for (int i = 0; i < BM; i += THREADS * 4 / BK) {
      const int m = row0 + a_row + i;
      const float4 a4 = load4(&A[m * lda + k0 + a_col], m < M && k0 + a_col < K);
      As[a_col + 0][a_row + i] = a4.x;
      As[a_col + 1][a_row + i] = a4.y;
      As[a_col + 2][a_row + i] = a4.z;
      As[a_col + 3][a_row + i] = a4.w;
    }
#pragma unroll
    for (int i = 0; i < BK; i += THREADS * 4 / BN) {
      const int k = k0 + b_row + i, n = col0 + b_col;
      *reinterpret_cast<float4*>(&Bs[b_row + i][b_col]) = load4(&B[k * ldb + n], k < K && n < N);
    }
    __syncthreads();

#pragma unroll
    for (int k = 0; k < BK; ++k) {
      float a[TM], b[TN];
      for (int i = 0; i < TM; i += 4)
        *reinterpret_cast<float4*>(&a[i]) = *reinterpret_cast<float4*>(&As[k][ty + i / 4 * STEP_M]);
      for (int j = 0; j < TN; j += 4)
        *reinterpret_cast<float4*>(&b[j]) = *reinterpret_cast<float4*>(&Bs[k][tx + j / 4 * STEP_N]);
      for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN; ++j) acc[i][j] += a[i] * b[j];
    }
    __syncthreads();
  }
  for (int i = 0; i < TM; ++i)
    for (int j = 0; j < TN; j += 4) {
      const int row = row0 + ty + i / 4 * STEP_M + i % 4, col = col0 + tx + j / 4 * STEP_N;
      if (row < M && col < N) store4(&D[row * ldd + col], alpha, &acc[i][j], beta, &C[row * ldc + col]);
    }
}
