// SPDX-License-Identifier: Apache-2.0
// Stage 15, mma.sync fed by TMA: a producer fills the ring, four warps only multiply.
//
// Idea      The swizzled tiles of the stage before are what TMA writes by itself. One producer thread asks
//           for them; a full and an empty mbarrier per slot replace cp.async groups and __syncthreads, and
//           warps no longer wait for one another. setmaxnreg moves the producer's registers to the
//           consumers (it acts on a warpgroup, so the producer is one, mostly idle).
// Changes   Copy instructions from 16 cp.async a thread and tile, with addresses and guards, to 2 (or 4) for
//           the CTA. CTA-wide barriers: none.
// Measured  4096^3, bf16: 431 TFLOP/s, 62% of cuBLAS; README.md, stage 15.
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
constexpr int SLOT = A_BYTES + B_BYTES;
constexpr int SMEM = 1024 + STAGES * SLOT;

// An operand tile in shared memory. K-major: rows of 64 along k. MN-major: boxes of BK rows of 64 along m (or n).
// Both XOR-swizzled.
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
gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, int M, int N, int K,
     float alpha, float beta, const half16* C, int64 ldc, half16* D, int64 ldd) {
  extern __shared__ char smem[];
  __shared__ Barrier full[STAGES], empty[STAGES];
  char* ring = smem + (-smem_address(smem) & 1023);  // so that the swizzle's rows count from 0
  // CTAs in panels: PANEL tiles down, then one to the right, and so on along N; the last panel may be lower.
  const int id = blockIdx.y * gridDim.x + blockIdx.x, panel = id / (PANEL * gridDim.x), within = id % (PANEL * gridDim.x);
  const int height = min(PANEL, int(gridDim.y) - panel * PANEL);
  const int row0 = (panel * PANEL + within % height) * BM, col0 = within / height * BN;
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
    for (int tile = 0; tile * BK < K; ++tile) {
      const int slot = tile % STAGES, round = tile / STAGES;
      char* As = ring + slot * SLOT;
      barrier_wait(&empty[slot], round & 1 ^ 1);  // waits for the consumers; at once in the first round
      barrier_expect(&full[slot], SLOT);
      load_operand<A_MN_MAJOR, BM, BK>(As, &map_a, &full[slot], row0, tile * BK);
      load_operand<B_MN_MAJOR, BN, BK>(As + A_BYTES, &map_b, &full[slot], col0, tile * BK);
    }
    return;
  }

  registers_up<232>();  // consumers
  const int warp = threadIdx.x / 32 - 4;
  const int m0 = warp / (BN / WN) * WM, n0 = warp % (BN / WN) * WN;  // this warp's part of the tile
  // A block's matrices: of A (m, k), (m + 8, k), (m, k + 8), (m + 8, k + 8); of B (n, k), (n, k + 8), (n + 8, k), ...
  const int lane = threadIdx.x % 32, down = lane % 16, across = lane / 16 * 8 + lane % 8;
  const Blocks<A_MN_MAJOR> blocks_a(ring, m0, A_MN_MAJOR ? across : down, A_MN_MAJOR ? lane / 8 & 1 : lane / 16);
  const Blocks<B_MN_MAJOR> blocks_b(ring + A_BYTES, n0, B_MN_MAJOR ? down : across, B_MN_MAJOR ? lane / 16 : lane / 8 & 1);

  float acc[WM / 16][WN / 8][4] = {};
  Fragments fragments[2];
  barrier_wait(&full[0], 0);  // waits for TMA
  fragments[0].load(blocks_a, blocks_b, 0, 0);
#pragma unroll 1
  for (int tile = 0; tile * BK < K; ++tile) {
    const int slot = tile % STAGES, next = (tile + 1) % STAGES;
#pragma unroll
    for (int k = 0; k < BK / 16 - 1; ++k) {
      fragments[(k + 1) % 2].load(blocks_a, blocks_b, slot * SLOT, k + 1);
      fragments[k % 2].multiply(acc);
    }
    __syncwarp();  // all lanes have read the slot before it goes back to the producer
    if (threadIdx.x % 32 == 0) barrier_arrive(&empty[slot]);
    if ((tile + 1) * BK < K) {
      barrier_wait(&full[next], (tile + 1) / STAGES & 1);  // waits for TMA
      fragments[0].load(blocks_a, blocks_b, next * SLOT, 0);
    }
    fragments[1].multiply(acc);
  }
  store({M, N, alpha, beta, C, ldc, D, ldd}, acc, row0 + m0, col0 + n0);
}
