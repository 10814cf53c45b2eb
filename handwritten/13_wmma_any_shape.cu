// SPDX-License-Identifier: Apache-2.0
// Stage 13, WMMA for any shape: zero-filled edges, guarded stores, any pitch.
//
// Idea      cp.async can be told to read fewer than 16 bytes and fill up with zeros: tiles that hang over
//           the edge of A or B need no other code. Where rows do not start at multiples of 16 bytes (an
//           odd pitch) the elements are copied one by one. Stores ask whether they are inside.
// Changes   Nothing where the matrices fit: one comparison per copy. M, N, K and the pitches are free.
// Measured  4096^3, bf16: 148 TFLOP/s, 21% of cuBLAS; README.md, stage 13.
// Answers   "Note 001", any shape: the same speed as the stage before.
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

// Whether rows can be copied 16 bytes at a time.
__device__ __forceinline__ bool aligned(const half16* p, int64 ld) {
  return (reinterpret_cast<unsigned long long>(p) | ld * 2) % 16 == 0;
}

// Starts copying a tile, 8 elements a thread; what lies beyond `rows` and `cols` becomes zero.
template <class Tile>
__device__ __forceinline__ void copy_tile(half16* to, const half16* from, int64 ld, int rows, int cols, bool vectors) {
  for (int i = threadIdx.x * 8; i < Tile::ROWS * Tile::COLS; i += THREADS * 8) {
    const int row = i / Tile::COLS, col = i % Tile::COLS;
    const int count = row < rows ? max(0, min(8, cols - col)) : 0;  // elements inside
    half16* at = to + row * Tile::PITCH + col;
    if (vectors && count == 8) {
      cp_async16(at, from + row * ld + col, 16);  // the usual case: a count known late costs instructions
    } else if (vectors) {
      cp_async16(at, count ? from + row * ld + col : from, count * 2);
    } else {
      for (int e = 0; e < 8; ++e) at[e] = e < count ? from[row * ld + col + e] : half16(0.f);
    }
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
  const bool vectors_a = aligned(A, lda), vectors_b = aligned(B, ldb);
  const int m0 = warp / (BN / WN) * WM, n0 = warp % (BN / WN) * WN;  // this warp's part of the tile

  Accumulator acc[WM / 16][WN / 16];
#pragma unroll
  for (int i = 0; i < WM / 16; ++i)
    for (int j = 0; j < WN / 16; ++j) wmma::fill_fragment(acc[i][j], 0);
  auto load = [&](int k0) {
    half16* As = shared.tiles[k0 / BK % BUFFERS];
    copy_tile<TileA>(As, A + offset<A_COL>(row0, k0, lda), lda, A_COL ? K - k0 : M - row0, A_COL ? M - row0 : K - k0, vectors_a);
    copy_tile<TileB>(As + A_SIZE, B + offset<B_COL>(k0, col0, ldb), ldb, B_COL ? N - col0 : K - k0, B_COL ? K - k0 : N - col0, vectors_b);
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
  const bool vectors_d = aligned(D, ldd) && (beta == 0 || aligned(C, ldc));
  for (int i = threadIdx.x * 8; i < BM * BN; i += THREADS * 8) {
    const int row = row0 + i / BN, col = col0 + i % BN;
    const float* from = &shared.out[i / BN * OUT_PITCH + i % BN];
    if (vectors_d) out.eight(row, col, from);
    else
      for (int e = 0; e < 8; ++e) out.element(row, col + e, from[e]);
  }
}
