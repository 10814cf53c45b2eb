// SPDX-License-Identifier: Apache-2.0
// Stage 15, mma.sync fed by TMA: a producer fills the ring, four warps only multiply.
//
// Idea      The swizzled tiles of the stage before are what TMA writes by itself. One producer thread asks
//           for them; a full and an empty mbarrier per slot replace cp.async groups and __syncthreads, and
//           warps no longer wait for one another. setmaxnreg moves the producer's registers to the
//           consumers (it acts on a warpgroup, so the producer is one, mostly idle).
// Changes   Copy instructions from 16 cp.async a thread and tile, with addresses and guards, to 2 (or 4) for
//           the CTA. CTA-wide barriers: none.
// Measured  README.md, row 15.
// Answers   "Modern GPU Matmul Optimization", TMA with a producer warp: 105 % of cuBLAS fp16, RTX 5090.
#include "common.cuh"

constexpr int BM = 128;
constexpr int BN = 128;
constexpr int BK = 64;
constexpr int WM = 64;
constexpr int WN = 64;
constexpr int STAGES = 3;
constexpr int PANEL = 8;
constexpr int CONSUMER_WARPS = BM * BN / (WM * WN);
constexpr int THREADS = 128 + CONSUMER_WARPS * 32;
constexpr int A_BYTES = BM * BK * 2;
constexpr int B_BYTES = BK * BN * 2;
constexpr int SMEM = 1024 + STAGES * (A_BYTES + B_BYTES);

// Byte offset of the 16 bytes that begin at element (mn, k) of an operand tile in shared memory. K-major:
// rows of 64 along k. MN-major: boxes of BK rows of 64 along m (or n). Both XOR-swizzled.
template <bool MN_MAJOR>
__device__ __forceinline__ int at(int mn, int k) {
  return MN_MAJOR ? mn / 64 * BK * 128 + swizzled(k, mn % 64 / 8) : swizzled(mn, k / 8);
}

// A 16 x 16 fragment of A: matrices (m, k), (m + 8, k), (m, k + 8), (m + 8, k + 8).
__device__ __forceinline__ void load_a(unsigned (&r)[4], const char* As, int m, int k) {
  const int lane = threadIdx.x % 32;
  if (A_MN_MAJOR) ldmatrix4<true>(r, As + at<true>(m + (lane / 8 & 1) * 8, k + lane / 16 * 8 + lane % 8));
  else ldmatrix4<false>(r, As + at<false>(m + lane % 16, k + lane / 16 * 8));
}
// Two 16 x 8 fragments of B side by side: matrices (n, k), (n, k + 8), (n + 8, k), (n + 8, k + 8).
__device__ __forceinline__ void load_b(unsigned (&r)[4], const char* Bs, int n, int k) {
  const int lane = threadIdx.x % 32;
  if (B_MN_MAJOR) ldmatrix4<true>(r, Bs + at<true>(n + lane / 16 * 8, k + lane % 16));
  else ldmatrix4<false>(r, Bs + at<false>(n + lane / 16 * 8 + lane % 8, k + (lane / 8 & 1) * 8));
}

// Multiplies one tile of k: WM x WN of a warp, 16 of k at a time.
__device__ __forceinline__ void multiply(float (&acc)[WM / 16][WN / 8][4], const char* As, const char* Bs, int m0, int n0) {
#pragma unroll
  for (int k = 0; k < BK; k += 16) {
    unsigned a[WM / 16][4], b[WN / 16][4];
#pragma unroll
    for (int i = 0; i < WM / 16; ++i) load_a(a[i], As, m0 + i * 16, k);
#pragma unroll
    for (int j = 0; j < WN / 16; ++j) load_b(b[j], Bs, n0 + j * 16, k);
#pragma unroll
    for (int i = 0; i < WM / 16; ++i)
#pragma unroll
      for (int j = 0; j < WN / 8; ++j) mma(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
  }
}

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
gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, int M, int N, int K,
     float alpha, float beta, const half16* C, int64 ldc, half16* D, int64 ldd) {
  extern __shared__ char smem[];
  __shared__ Barrier full[STAGES], empty[STAGES];
  char* ring = smem + (-smem_address(smem) & 1023);  // so that the swizzle's rows count from 0
  // CTAs in panels: PANEL tiles down, then one to the right, and so on along N; the last panel may be lower.
  const int id = blockIdx.y * gridDim.x + blockIdx.x, panel = id / (PANEL * gridDim.x), within = id % (PANEL * gridDim.x);
  const int height = min(PANEL, int(gridDim.y) - panel * PANEL);
  const int row0 = (panel * PANEL + within % height) * BM, col0 = within / height * BN;
  const int tiles = ceil_div(K, BK);
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < STAGES; ++slot) {
      barrier_init(&full[slot], 1);                // the producer's thread, and TMA's bytes
      barrier_init(&empty[slot], CONSUMER_WARPS);  // every consumer warp
    }
    barrier_init_fence();
  }
  __syncthreads();

  if (threadIdx.x < 128) {  // producer
    registers_down<24>();
    if (threadIdx.x != 0) return;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      const int slot = tile % STAGES, round = tile / STAGES;
      char* As = ring + slot * (A_BYTES + B_BYTES);
      barrier_wait(&empty[slot], round & 1 ^ 1);  // waits for the consumers; at once in the first round
      barrier_expect(&full[slot], A_BYTES + B_BYTES);
      load_operand<A_MN_MAJOR, BM, BK>(As, &map_a, &full[slot], row0, tile * BK);
      load_operand<B_MN_MAJOR, BN, BK>(As + A_BYTES, &map_b, &full[slot], col0, tile * BK);
    }
    return;
  }

  registers_up<232>();  // consumers
  const int warp = threadIdx.x / 32 - 4;
  const int m0 = warp / (BN / WN) * WM, n0 = warp % (BN / WN) * WN;  // this warp's part of the tile
  float acc[WM / 16][WN / 8][4] = {};
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    const int slot = tile % STAGES, round = tile / STAGES;
    const char* As = ring + slot * (A_BYTES + B_BYTES);
    barrier_wait(&full[slot], round & 1);  // waits for TMA
    multiply(acc, As, As + A_BYTES, m0, n0);
    __syncwarp();  // all lanes have read the slot before it goes back to the producer
    if (threadIdx.x % 32 == 0) barrier_arrive(&empty[slot]);
  }
  store({M, N, alpha, beta, C, ldc, D, ldd}, acc, row0 + m0, col0 + n0);
}
