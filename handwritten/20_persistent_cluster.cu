// SPDX-License-Identifier: Apache-2.0
// Stage 20, persistent: one CTA per multiprocessor, in pairs that share B, storing by TMA.
//
// Idea      A CTA works through tiles until none is left, so the producer loads the next tile while the
//           consumers store this one. Two CTAs, one above the other, form a cluster: each loads half of
//           their common tile of B and multicasts it to both. C and D pass through shared memory by TMA
//           in 64 x 64 boxes. Tiles are taken in panels, so that resident CTAs share A and B in L2.
// Changes   Bytes asked of L2 per tile of k: A + B = 48 KB to A + B/2 = 32 KB. Prologue and epilogue once
//           a CTA instead of once a tile. Global access instructions of the epilogue: none by threads.
// Measured  4096^3, bf16: 673 TFLOP/s, 97% of cuBLAS; README.md, stage 20.
// Answers   Nothing: "Optimising GEMM on NVIDIA H100" stops a stage earlier, at 63 % of cuBLAS.
#include "common.cuh"

constexpr int BM = 128;
constexpr int BN = 256;
constexpr int BK = 64;
constexpr int STAGES = 4;
constexpr int CONSUMERS = 2;
constexpr int CLUSTER = 2;
constexpr int PANEL = 8;
constexpr int SPAN = 64;
constexpr int THREADS = 128 * (1 + CONSUMERS);
constexpr int A_BYTES = BM * BK * 2;
constexpr int B_BYTES = BK * BN * 2;
constexpr int B_BOX = BN / CLUSTER;
constexpr int BOX_BYTES = 64 * SPAN * 2;
constexpr int SMEM = 1024 + STAGES * (A_BYTES + B_BYTES) + CONSUMERS * 2 * BOX_BYTES;

// Where a cluster's pair of tiles lies: panels of PANEL pairs down M, each visited along N.
struct Tiles {
  int pairs_m, tiles_n;

  __device__ __forceinline__ Tiles(int M, int N) : pairs_m(ceil_div(M, BM * CLUSTER)), tiles_n(ceil_div(N, BN)) {}
  __device__ __forceinline__ int count() const { return pairs_m * tiles_n; }
  __device__ __forceinline__ int2 origin(int tile) const {  // the pair's first row and column
    const int panel = tile / (PANEL * tiles_n), within = tile % (PANEL * tiles_n);
    const int height = min(PANEL, pairs_m - panel * PANEL);  // the last panel may be lower
    return {(panel * PANEL + within % height) * BM * CLUSTER, within / height * BN};
  }
};

// Loads half of the pair's tile of B into both CTAs.
__device__ __forceinline__ void multicast_b(char* Bs, const TensorMap* map, Barrier* barrier, int col0, int k0, int rank) {
  constexpr unsigned short BOTH = (1 << CLUSTER) - 1;
  char* to = Bs + rank * (B_BYTES / CLUSTER);  // half of n is half of the bytes in either major
  const int n0 = col0 + rank * B_BOX;
  if (B_MN_MAJOR) {
    for (int box = 0; box < B_BOX / 64; ++box)
      tma_load_multicast(to + box * BK * 128, map, barrier, n0 + box * 64, k0, BOTH);
  } else {
    tma_load_multicast(to, map, barrier, k0, n0, BOTH);
  }
}

// Loads one box of C into staging memory; called by one thread of a consumer.
__device__ __forceinline__ void load_c(char* box, const TensorMap* map, Barrier* barrier, int col, int row) {
  barrier_expect(barrier, BOX_BYTES);
  tma_load(box, map, barrier, col, row);
}

// A consumer's way from its accumulators to D, in boxes of 64 x SPAN through two boxes of staging memory.
struct Epilogue {
  char* boxes;
  Barrier* c_full;
  const TensorMap *map_c, *map_d;
  float alpha, beta;
  int col0, row0;

  template <bool READ_C>
  __device__ __forceinline__ void store(const float (&acc)[BN / 2]) const {
    const bool leader = threadIdx.x % 128 == 0;
    const int consumer = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
    const int row = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < BN / SPAN; ++j) {
      char* box = boxes + j % 2 * BOX_BYTES;
      if (READ_C) {
        barrier_wait(&c_full[j % 2], j / 2 & 1);  // waits for C
      } else {
        if (leader) tma_store_wait_read<1>();  // the store of two boxes ago has read this buffer
        named_barrier(1 + consumer, 128);
      }
#pragma unroll
      for (int i = 0; i < SPAN / 2; i += 2) {
        // Accumulators come in fours: two neighbours of `row`, then two of the row 8 below.
        half16x2* at = reinterpret_cast<half16x2*>(box + swizzled(row + i / 2 % 2 * 8, i / 4) + lane % 4 * 4);
        const float* x = &acc[j * (SPAN / 2) + i];
        const float2 c = READ_C ? unpack(*at) : float2{};
        *at = pack(alpha * x[0] + beta * c.x, alpha * x[1] + beta * c.y);
      }
      fence_async_proxy();  // our writes come before TMA's reads
      named_barrier(1 + consumer, 128);
      if (leader) {
        tma_store(map_d, box, col0 + j * SPAN, row0);
        tma_store_commit();
        if (READ_C && j + 2 < BN / SPAN) {
          tma_store_wait_read<0>();
          load_c(box, map_c, &c_full[j % 2], col0 + (j + 2) * SPAN, row0);
        }
      }
    }
  }
};

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS)
gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
     const __grid_constant__ TensorMap map_c, const __grid_constant__ TensorMap map_d, int M, int N, int K,
     float alpha, float beta) {
  extern __shared__ char smem[];
  __shared__ Barrier full[STAGES], empty[STAGES], c_full[CONSUMERS][2];
  char* ring = smem + (-smem_address(smem) & 1023);  // a swizzled tile starts at a multiple of 1024 bytes
  char* staging = ring + STAGES * (A_BYTES + B_BYTES);
  const Tiles grid(M, N);
  const int tiles = ceil_div(K, BK);
  const int rank = cluster_rank();
  const int warpgroup = threadIdx.x / 128;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < STAGES; ++slot) {
      barrier_init(&full[slot], 1);                         // this CTA's producer, and TMA's bytes
      barrier_init(&empty[slot], CLUSTER * CONSUMERS * 4);  // every consumer warp of both CTAs
    }
    for (int i = 0; i < CONSUMERS * 2; ++i) barrier_init(&c_full[i / 2][i % 2], 1);
    barrier_init_fence();
  }
  cluster_sync();  // the other CTA's barriers are ready before anything is sent there

  int step = 0;  // tiles of k so far, over all tiles of D: the position in the ring
  if (warpgroup == 0) {  // producer
    registers_down<24>();
    if (threadIdx.x == 0) {
      for (int pair = blockIdx.x / CLUSTER; pair < grid.count(); pair += gridDim.x / CLUSTER) {
        const int row0 = grid.origin(pair).x + rank * BM, col0 = grid.origin(pair).y;
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile, ++step) {
          const int slot = step % STAGES, round = step / STAGES;
          char* As = ring + slot * (A_BYTES + B_BYTES);
          barrier_wait(&empty[slot], round & 1 ^ 1);  // waits for the consumers of both CTAs
          barrier_expect(&full[slot], A_BYTES + B_BYTES);
          load_operand<A_MN_MAJOR, BM, BK>(As, &map_a, &full[slot], row0, tile * BK);
          multicast_b(As + A_BYTES, &map_b, &full[slot], col0, tile * BK, rank);
        }
      }
    }
  } else {  // consumers
    registers_up<240>();
    const int consumer = warpgroup - 1;
    const bool leader = threadIdx.x % 128 == 0;
    const int lane = threadIdx.x % 32;
    char* boxes = staging + consumer * 2 * BOX_BYTES;
    for (int pair = blockIdx.x / CLUSTER; pair < grid.count(); pair += gridDim.x / CLUSTER) {
      const int row0 = grid.origin(pair).x + rank * BM + consumer * 64, col0 = grid.origin(pair).y;
      if (leader && beta != 0) {
        tma_store_wait_read<0>();  // the buffers' last contents have left
        for (int j = 0; j < 2; ++j) load_c(boxes + j * BOX_BYTES, &map_c, &c_full[consumer][j], col0 + j * SPAN, row0);
      }

      float acc[BN / 2];  // the first wgmma overwrites it
      for (int tile = 0; tile < tiles; ++tile, ++step) {
        const int slot = step % STAGES, round = step / STAGES;
        const char* As = ring + slot * (A_BYTES + B_BYTES);
        barrier_wait(&full[slot], round & 1);  // waits for TMA

        wgmma_fence();
        const unsigned long long a = descriptor<A_MN_MAJOR, BK>(As + consumer * 64 * BK * 2);
        const unsigned long long b = descriptor<B_MN_MAJOR, BK>(As + A_BYTES);
#pragma unroll
        for (int k = 0; k < BK / 16; ++k)
          wgmma(acc, a + k * K_STEP<A_MN_MAJOR>, b + k * K_STEP<B_MN_MAJOR>, tile + k > 0);
        wgmma_commit();
        wgmma_wait<1>();  // the tile before is done: its slot goes back to both producers
        if (tile > 0 && lane < CLUSTER) barrier_arrive_remote(&empty[(step - 1) % STAGES], lane);
      }
      wgmma_wait<0>();
      if (lane < CLUSTER) barrier_arrive_remote(&empty[(step - 1) % STAGES], lane);

      const Epilogue epilogue{boxes, c_full[consumer], &map_c, &map_d, alpha, beta, col0, row0};
      if (beta != 0) epilogue.store<true>(acc);
      else epilogue.store<false>(acc);
    }
    if (leader) tma_store_wait_read<0>();
  }
  __syncwarp();    // single threads have gone their own way, and the barrier takes whole warps
  cluster_sync();  // nobody leaves while the other CTA may still arrive on its barriers
}
