// SPDX-License-Identifier: Apache-2.0
// Stage 14, mma.sync: ldmatrix feeds the tensor cores from an XOR-swizzled multistage ring.
//
// Idea      Below WMMA: ldmatrix hands a warp four 8 x 8 matrices at once, mma.sync multiplies 16x8x16
//           from registers. A tile's rows are 128 bytes, and chunk c of row r lies at c ^ (r % 8), so
//           neither the copies in nor ldmatrix out meet in a bank, without padding. STAGES tiles are in
//           flight by cp.async; a warp owns 64 x 64 with every thread busy in both loads, and fragments are
//           loaded 16 of k ahead, across tiles too.
// Changes   Shared-memory bytes read per FLOP (WM+WN) / (WM*WN) = 1/32, from 1/16 with 32 x 32 a warp.
//           Arithmetic intensity BM*BN / (BM+BN) = 64 FLOP/byte. One __syncthreads per 64 of k, and 128
//           mma.sync, 32 ldmatrix and 16 cp.async among some 300 instructions a warp and tile.
// Measured  4096^3, bf16: 402 TFLOP/s, 58% of cuBLAS; README.md, stage 14.
// Answers   "cuBLAS Worklog", ldmatrix + mma.sync: 17 TFLOP/s on a T4.
#include "common.cuh"

constexpr int BM = 128;
constexpr int BN = 128;
constexpr int BK = 64;
constexpr int WM = 64;
constexpr int WN = 64;
constexpr int STAGES = 3;
constexpr int PANEL = 8;
constexpr int THREADS = BM * BN / (WM * WN) * 32;
constexpr int A_BYTES = BM * BK * 2;
constexpr int B_BYTES = BK * BN * 2;
constexpr int SLOT = A_BYTES + B_BYTES;
constexpr int SMEM = 1024 + STAGES * SLOT;

// An operand tile in shared memory. K-major: rows of 64 along k. MN-major: boxes of BK rows of 64 along m (or n).
// Both XOR-swizzled.
// This thread's share of an operand's copies: `ROWS` of m (or n) and BK of k a tile, COUNT vectors of 16
// bytes that lie STEP rows apart in memory and, as STEP is a multiple of 8, in the swizzle as well.
// Addresses and guards are worked out once, then moved from tile to tile.
template <bool MN_MAJOR, int ROWS>
struct Copies {
  static constexpr int VECTORS = MN_MAJOR ? ROWS / 8 : BK / 8;  // along a row in memory
  static constexpr int STEP = THREADS / VECTORS;
  static constexpr int COUNT = ROWS * BK / 8 / THREADS;
  static_assert(STEP % 8 == 0, "a thread's vectors share their place in the swizzle");
  const half16* source;
  int64 step, next;           // elements from vector to vector, and from tile to tile
  int along_left, rows_left;  // elements and rows from the first vector to the matrix's edge
  int to;

  __device__ __forceinline__ Copies(const half16* from, int64 ld, int mn0, int MN, int K) {
    const int row = threadIdx.x / VECTORS, along = threadIdx.x % VECTORS * 8;
    const int row0 = MN_MAJOR ? row : mn0 + row, along0 = MN_MAJOR ? mn0 + along : along;
    source = from + row0 * ld + along0;
    step = STEP * ld, next = MN_MAJOR ? BK * ld : BK;
    along_left = (MN_MAJOR ? MN : K) - along0, rows_left = (MN_MAJOR ? K : MN) - row0;
    to = (MN_MAJOR ? along / 64 * BK * 128 : 0) + swizzled(row, along % 64 / 8);
  }

  // Starts the copies of the next tile, with zeros outside the matrix.
  __device__ __forceinline__ void start(char* tile) {
    if (along_left >= 8 && rows_left > (COUNT - 1) * STEP) {  // all of them are inside: no guards
#pragma unroll
      for (int i = 0; i < COUNT; ++i) cp_async16(tile + to + i * STEP * 128, source + i * step, 16);
    } else {
      const int bytes = max(0, min(16, along_left * 2));
#pragma unroll 1
      for (int i = 0; i < COUNT; ++i)
        cp_async16(tile + to + i * STEP * 128, source + i * step, i * STEP < rows_left ? bytes : 0);
    }
    source += next;
    (MN_MAJOR ? rows_left : along_left) -= BK;
  }
};

// Where ldmatrix finds an operand's 16 x 16 blocks in the ring's first slot: this lane gives row `row` of a block
// and the first or second (`high`) of its chunks. The swizzle repeats down the rows, so 4 places serve 16 blocks.
template <bool MN_MAJOR>
struct Blocks {
  unsigned at[4];

  __device__ __forceinline__ Blocks(const char* tile, int mn0, int row, int high) {
    const unsigned first = smem_address(tile) + (MN_MAJOR ? mn0 / 64 * BK * 128 : mn0 * 128);
    for (int i = 0; i < 4; ++i) at[i] = first + swizzled(row, 2 * i + high);
  }
  // Block number mn along m (or n) and number k along k.
  __device__ __forceinline__ unsigned operator()(int mn, int k) const {
    return MN_MAJOR ? at[mn] + k * 16 * 128 : at[k] + mn * 16 * 128;
  }
};

// A warp's operands for 16 of k: 16 x 16 fragments of A, 16 x 8 fragments of B in pairs.
struct Fragments {
  unsigned a[WM / 16][4], b[WN / 16][4];

  __device__ __forceinline__ void load(const Blocks<A_MN_MAJOR>& blocks_a, const Blocks<B_MN_MAJOR>& blocks_b, int slot,
                                       int k) {
#pragma unroll
    for (int i = 0; i < WM / 16; ++i) ldmatrix4<A_MN_MAJOR>(a[i], blocks_a(i, k) + slot);
#pragma unroll
    for (int j = 0; j < WN / 16; ++j) ldmatrix4<B_MN_MAJOR>(b[j], blocks_b(j, k) + slot);
  }
  __device__ __forceinline__ void multiply(float (&acc)[WM / 16][WN / 8][4]) const {
#pragma unroll
    for (int i = 0; i < WM / 16; ++i)
#pragma unroll
      for (int step = 0; step < WN / 8; ++step) {
        const int j = i % 2 ? WN / 8 - 1 - step : step;  // to and fro: neighbours share an operand
        mma(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
  }
};

// Two neighbours of row lane/4 and two of the row 8 below, for each 16 x 8 of the warp's part.
__device__ __forceinline__ void store(const Output& out, const float (&acc)[WM / 16][WN / 8][4], int row0, int col0) {
  const int row = row0 + threadIdx.x % 32 / 4, col = col0 + threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < WM / 16; ++i)
#pragma unroll
    for (int j = 0; j < WN / 8; ++j) {
      out.pair(row + i * 16, col + j * 8, acc[i][j][0], acc[i][j][1]);
      out.pair(row + i * 16 + 8, col + j * 8, acc[i][j][2], acc[i][j][3]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm(int M, int N, int K, float alpha, const half16* A, int64 lda, const half16* B, int64 ldb,
     float beta, const half16* C, int64 ldc, half16* D, int64 ldd) {
  extern __shared__ char smem[];
  char* ring = smem + (-smem_address(smem) & 1023);  // so that the swizzle's rows count from 0
  // CTAs in panels: PANEL tiles down, then one to the right, and so on along N; the last panel may be lower.
  const int id = blockIdx.y * gridDim.x + blockIdx.x, panel = id / (PANEL * gridDim.x), within = id % (PANEL * gridDim.x);
  const int height = min(PANEL, int(gridDim.y) - panel * PANEL);
  const int row0 = (panel * PANEL + within % height) * BM, col0 = within / height * BN;
  const int tiles = ceil_div(K, BK);
  const int warp = threadIdx.x / 32;
  const int m0 = warp / (BN / WN) * WM, n0 = warp % (BN / WN) * WN;  // this warp's part of the tile

  Copies<A_MN_MAJOR, BM> copies_a(A, lda, row0, M, K);
  Copies<B_MN_MAJOR, BN> copies_b(B, ldb, col0, N, K);
  auto load = [&](int tile, int slot) {
    if (tile < tiles) {
      copies_a.start(ring + slot);
      copies_b.start(ring + slot + A_BYTES);
    }
    cp_async_commit();  // a group for every tile, empty ones too, keeps the count right
  };
  for (int tile = 0; tile < STAGES - 1; ++tile) load(tile, tile * SLOT);

  // A block's matrices: of A (m, k), (m + 8, k), (m, k + 8), (m + 8, k + 8); of B (n, k), (n, k + 8), (n + 8, k), ...
  const int lane = threadIdx.x % 32, down = lane % 16, across = lane / 16 * 8 + lane % 8;
  const Blocks<A_MN_MAJOR> blocks_a(ring, m0, A_MN_MAJOR ? across : down, A_MN_MAJOR ? lane / 8 & 1 : lane / 16);
  const Blocks<B_MN_MAJOR> blocks_b(ring + A_BYTES, n0, B_MN_MAJOR ? down : across, B_MN_MAJOR ? lane / 16 : lane / 8 & 1);

  float acc[WM / 16][WN / 8][4] = {};
  Fragments fragments[2];
  cp_async_wait<STAGES - 2>();  // this thread's part of the first tile has arrived
  __syncthreads();              // everyone's has
  fragments[0].load(blocks_a, blocks_b, 0, 0);
  int slot = 0, free = (STAGES - 1) * SLOT;  // where this tile lies, and where the next copy goes
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    const int next = tile + 1 == tiles ? slot : slot + SLOT == STAGES * SLOT ? 0 : slot + SLOT;
    load(tile + STAGES - 1, free);
#pragma unroll
    for (int k = 0; k < BK / 16 - 1; ++k) {
      fragments[(k + 1) % 2].load(blocks_a, blocks_b, slot, k + 1);
      fragments[k % 2].multiply(acc);
    }
    cp_async_wait<STAGES - 2>();  // this thread's part of the next tile has arrived
    __syncthreads();              // everyone's has, and everyone is done with the slot refilled next
    fragments[0].load(blocks_a, blocks_b, next, 0);
    fragments[1].multiply(acc);
    free = slot, slot = next;
  }
  store({M, N, alpha, beta, C, ldc, D, ldd}, acc, row0 + m0, col0 + n0);
}
