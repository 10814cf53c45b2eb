// SPDX-License-Identifier: Apache-2.0
// Stage 12, WMMA swizzled: CTAs in panels for L2, padded rows for the banks, twice the k per tile.
//
// Idea      CTAs that run together should share rows of A and columns of B: they are renumbered so that
//           PANEL rows of tiles are visited side by side along N. Rows of the tiles are padded by 8
//           elements, so that the 8 rows of a fragment's load start in different banks.
// Changes   Distinct bytes that a wave of W CTAs asks of L2's far side: from (1 + W) tiles to about
//           (PANEL + W/PANEL). Bank conflicts of a fragment load from up to 8 to none. Barriers per
//           k: half.
// Measured  4096^3, bf16: 169 TFLOP/s, 24% of cuBLAS; README.md, stage 12.
// Answers   "Note 001", swizzled: 0.04 ms on an H200 (panel 4, pad 8).
#include "wmma.cuh"

constexpr int BM = 64;
constexpr int BN = 64;
constexpr int BK = 32;
constexpr int WM = 32;
constexpr int WN = 32;
constexpr int BUFFERS = 2;
constexpr int PAD = 8;
constexpr int PANEL = 4;
constexpr int THREADS = BM * BN / (WM * WN) * 32;

// Tiles lie in shared memory as in global memory: rows along the contiguous dimension.
struct TileA {
  static constexpr int ROWS = A_COL ? BK : BM, COLS = A_COL ? BM : BK, PITCH = COLS + PAD;
};
struct TileB {
  static constexpr int ROWS = B_COL ? BN : BK, COLS = B_COL ? BK : BN, PITCH = COLS + PAD;
};

// Starts copying a tile, 16 bytes a thread.
template <class Tile>
__device__ __forceinline__ void copy_tile(half16* to, const half16* from, int64 ld) {
  for (int i = threadIdx.x * 8; i < Tile::ROWS * Tile::COLS; i += THREADS * 8) {
    const int row = i / Tile::COLS, col = i % Tile::COLS;
    cp_async16(to + row * Tile::PITCH + col, from + row * ld + col, 16);
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
  constexpr int A_SIZE = TileA::ROWS * TileA::PITCH, B_SIZE = TileB::ROWS * TileB::PITCH;
  constexpr int OUT_PITCH = BN + 8;  // in floats; the padding keeps the rows of a fragment apart
  union Shared {
    half16 tiles[BUFFERS][A_SIZE + B_SIZE];
    float out[BM * OUT_PITCH];
  };
  __shared__ alignas(32) char smem[sizeof(Shared)];
  Shared& shared = reinterpret_cast<Shared&>(smem);
  const int warp = threadIdx.x / 32;
  // CTAs in panels: PANEL tiles down, then one to the right, and so on along N; the last panel may be lower.
  const int id = blockIdx.y * gridDim.x + blockIdx.x, panel = id / (PANEL * gridDim.x), within = id % (PANEL * gridDim.x);
  const int height = min(PANEL, int(gridDim.y) - panel * PANEL);
  const int row0 = (panel * PANEL + within % height) * BM, col0 = within / height * BN;
  const int m0 = warp / (BN / WN) * WM, n0 = warp % (BN / WN) * WN;  // this warp's part of the tile

  Accumulator acc[WM / 16][WN / 16];
#pragma unroll
  for (int i = 0; i < WM / 16; ++i)
    for (int j = 0; j < WN / 16; ++j) wmma::fill_fragment(acc[i][j], 0);
  auto load = [&](int k0) {
    half16* As = shared.tiles[k0 / BK % BUFFERS];
    copy_tile<TileA>(As, A + offset<A_COL>(row0, k0, lda), lda);
    copy_tile<TileB>(As + A_SIZE, B + offset<B_COL>(k0, col0, ldb), ldb);
    cp_async_commit();
  };
  load(0);
  for (int k0 = 0; k0 < K; k0 += BK) {
    if (k0 + BK < K) load(k0 + BK);
    else cp_async_commit();  // an empty group keeps the count right
    cp_async_wait<1>();      // this thread's part of the tile has arrived
    __syncthreads();         // everyone's has
    const half16* As = shared.tiles[k0 / BK % BUFFERS];
    multiply(acc, As, As + A_SIZE, m0, n0);
    __syncthreads();  // everyone has read the tile before it is overwritten
  }

#pragma unroll
  for (int i = 0; i < WM / 16; ++i)
    for (int j = 0; j < WN / 16; ++j)
      wmma::store_matrix_sync(&shared.out[(m0 + i * 16) * OUT_PITCH + n0 + j * 16], acc[i][j], OUT_PITCH, wmma::mem_row_major);
  __syncthreads();  // the tile of D is complete before it is read in rows
  const Output out{M, N, alpha, beta, C, ldc, D, ldd};
  for (int i = threadIdx.x * 8; i < BM * BN; i += THREADS * 8)
    out.eight(row0 + i / BN, col0 + i % BN, &shared.out[i / BN * OUT_PITCH + i % BN]);
}
