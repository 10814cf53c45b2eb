// SPDX-License-Identifier: Apache-2.0
// Stage 06, vectorised: 128-bit loads everywhere, A transposed on its way into shared memory.
//
// Idea      Stored as As[k][m], the TM elements of A that a thread needs per k lie side by side, as
//           those of B already do: both come by 128-bit loads, from global memory too. Rows of As are
//           padded so that the transposing stores of a warp spread over the banks.
// Changes   Shared-memory load instructions per k from TM+TN = 16 (A's alone 8) to (TM+TN)/4 = 4;
//           global load instructions per tile a quarter.
// Measured  4096^3, fp32: 34.5 TFLOP/s, 67% of cuBLAS; README.md, stage 06.
// Answers   "Learn CUTLASS the hard way", vectorised: 39.0 TFLOP/s on an RTX 4090, 46.3 % of PyTorch.
#include "common.cuh"

constexpr int BM = 128;
constexpr int BN = 128;
constexpr int BK = 8;
constexpr int TM = 8;
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

extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm(int M, int N, int K, float alpha, const float* A, int64 lda, const float* B, int64 ldb,
     float beta, const float* C, int64 ldc, float* D, int64 ldd) {
  static_assert(BM * BK == 4 * THREADS && BK * BN == 4 * THREADS, "each thread copies one vector of A and one of B");
  __shared__ alignas(16) float As[BK][BM + PAD];  // transposed
  __shared__ alignas(16) float Bs[BK][BN];
  const int a_row = threadIdx.x / (BK / 4), a_col = threadIdx.x % (BK / 4) * 4;  // the vector of A this thread copies
  const int b_row = threadIdx.x / (BN / 4), b_col = threadIdx.x % (BN / 4) * 4;  // the vector of B
  const int row0 = blockIdx.y * BM;
  const int col0 = blockIdx.x * BN;
  const int ty = threadIdx.x / (BN / TN) * TM;  // this thread's first row and column within the tile
  const int tx = threadIdx.x % (BN / TN) * TN;

  float acc[TM][TN] = {};
  for (int k0 = 0; k0 < K; k0 += BK) {
    const int m = row0 + a_row, n = col0 + b_col;
    const float4 a4 = load4(&A[m * lda + k0 + a_col], m < M && k0 + a_col < K);
    As[a_col + 0][a_row] = a4.x;
    As[a_col + 1][a_row] = a4.y;
    As[a_col + 2][a_row] = a4.z;
    As[a_col + 3][a_row] = a4.w;
    *reinterpret_cast<float4*>(&Bs[b_row][b_col]) = load4(&B[(k0 + b_row) * ldb + n], k0 + b_row < K && n < N);
    __syncthreads();

#pragma unroll
    for (int k = 0; k < BK; ++k) {
      float a[TM], b[TN];
      for (int i = 0; i < TM; i += 4) *reinterpret_cast<float4*>(&a[i]) = *reinterpret_cast<float4*>(&As[k][ty + i]);
      for (int j = 0; j < TN; j += 4) *reinterpret_cast<float4*>(&b[j]) = *reinterpret_cast<float4*>(&Bs[k][tx + j]);
      for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN; ++j) acc[i][j] += a[i] * b[j];
    }
    __syncthreads();
  }
  for (int i = 0; i < TM; ++i)
    for (int j = 0; j < TN; j += 4) {
      const int row = row0 + ty + i, col = col0 + tx + j;
      if (row < M && col < N) store4(&D[row * ldd + col], alpha, &acc[i][j], beta, &C[row * ldc + col]);
    }
}
