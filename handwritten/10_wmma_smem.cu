// SPDX-License-Identifier: Apache-2.0
// Stage 10, WMMA from shared memory: the CTA stages tiles, warps load their fragments from there.
//
// Idea      Four warps, 2 x 2, share a 64 x 64 tile: they copy 64 x 16 of A and 16 x 64 of B together,
//           16 bytes a thread, and each multiplies its 32 x 32 with 2 x 2 fragments.
// Changes   Arithmetic intensity BM*BN / (BM+BN) = 32 FLOP/byte instead of 8. A fragment, once loaded,
//           is used twice.
// Measured  4096^3, bf16: 60 TFLOP/s, 9% of cuBLAS; README.md, stage 10.
// Answers   "cuBLAS Worklog", WMMA from shared memory: 3.2 TFLOP/s on a T4.
#include "wmma.cuh"

constexpr int BM = 64;
constexpr int BN = 64;
constexpr int BK = 16;
constexpr int WM = 32;
constexpr int WN = 32;
constexpr int THREADS = BM * BN / (WM * WN) * 32;

// Tiles lie in shared memory as in global memory: rows along the contiguous dimension.
struct TileA {
  static constexpr int ROWS = A_COL ? BK : BM, COLS = A_COL ? BM : BK, PITCH = COLS;
};
struct TileB {
  static constexpr int ROWS = B_COL ? BN : BK, COLS = B_COL ? BK : BN, PITCH = COLS;
};

// Copies a tile, 16 bytes a thread.
template <class Tile>
__device__ __forceinline__ void copy_tile(half16* to, const half16* from, int64 ld) {
  for (int i = threadIdx.x * 8; i < Tile::ROWS * Tile::COLS; i += THREADS * 8) {
    const int row = i / Tile::COLS, col = i % Tile::COLS;
    *reinterpret_cast<uint4*>(to + row * Tile::PITCH + col) = *reinterpret_cast<const uint4*>(from + row * ld + col);
  }
}

// Multiplies one tile of k: WM x WN of a warp at (m0, n0).
__device__ __forceinline__ void multiply(Accumulator (&acc)[WM / 16][WN / 16], const half16* As, const half16* Bs, int m0, int n0) {
#pragma unroll
  for (int k = 0; k < BK; k += 16) {
    FragmentA a[WM / 16];
    FragmentB b[WN / 16];
    for (int i = 0; i < WM / 16; ++i) load_shared(a[i], As + offset<A_COL>(m0 + i * 16, k, TileA::PITCH), TileA::PITCH);
    for (int j = 0; j < WN / 16; ++j) load_shared(b[j], Bs + offset<B_COL>(k, n0 + j * 16, TileB::PITCH), TileB::PITCH);
    for (int i = 0; i < WM / 16; ++i)
      for (int j = 0; j < WN / 16; ++j) wmma::mma_sync(acc[i][j], a[i], b[j], acc[i][j]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(int M, int N, int K, float alpha, const half16* A, int64 lda, const half16* B, int64 ldb,
     float beta, const half16* C, int64 ldc, half16* D, int64 ldd) {
  __shared__ alignas(32) half16 As[TileA::ROWS * TileA::PITCH];
  __shared__ alignas(32) half16 Bs[TileB::ROWS * TileB::PITCH];
  __shared__ alignas(32) float staged[THREADS / 32][16 * 16];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;
  const int m0 = warp / (BN / WN) * WM, n0 = warp % (BN / WN) * WN;  // this warp's part of the tile

  Accumulator acc[WM / 16][WN / 16];
#pragma unroll
  for (int i = 0; i < WM / 16; ++i)
    for (int j = 0; j < WN / 16; ++j) wmma::fill_fragment(acc[i][j], 0);
  for (int k0 = 0; k0 < K; k0 += BK) {
    copy_tile<TileA>(As, A + offset<A_COL>(row0, k0, lda), lda);
    copy_tile<TileB>(Bs, B + offset<B_COL>(k0, col0, ldb), ldb);
    __syncthreads();  // the tile is complete before anyone reads it
    multiply(acc, As, Bs, m0, n0);
    __syncthreads();  // everyone has read the tile before it is overwritten
  }

  // Which lane holds which element is not defined: shared memory puts them in order.
  const Output out{M, N, alpha, beta, C, ldc, D, ldd};
#pragma unroll
  for (int i = 0; i < WM / 16; ++i)
#pragma unroll
    for (int j = 0; j < WN / 16; ++j) {
      wmma::store_matrix_sync(staged[warp], acc[i][j], 16, wmma::mem_row_major);
      __syncwarp();
      for (int e = lane; e < 16 * 16; e += 32)
        out.element(row0 + m0 + i * 16 + e / 16, col0 + n0 + j * 16 + e % 16, staged[warp][e]);
      __syncwarp();
    }
}
