// SPDX-License-Identifier: Apache-2.0
// Stage 08, pipelined: TMA fills a ring of tiles while the threads do nothing but multiply.
//
// Idea      One thread asks the TMA unit for a whole tile, one k-step ahead; an mbarrier per ring slot
//           says when it has arrived. No thread computes addresses, guards edges or carries data in
//           registers. A stays row-major: a thread takes 4 elements along k at once, and TMA's
//           128-byte swizzle spreads the rows over the banks as the padding did.
// Changes   Copy instructions per tile from 24 a thread (with their addresses and guards) to 5 for the
//           whole CTA; one __syncthreads per 32 of k instead of two per 16. Loads in flight: STAGES-1
//           tiles, 32 KB a CTA. A tile is 4096 FFMA, 192 LDS.128 and about 130 other instructions.
// Measured  4096^3, fp32: 50.5 TFLOP/s, 98% of cuBLAS; README.md, stage 08.
// Answers   "Modern GPU Matmul Optimization", TMA with two buffers: 96 % of cuBLAS fp32 on an RTX 5090.
#include "common.cuh"

constexpr int BM = 128;
constexpr int BN = 128;
constexpr int BK = 32;
constexpr int WM = 64;
constexpr int WN = 64;
constexpr int TM = 16;
constexpr int TN = 8;
constexpr int STAGES = 2;
constexpr int THREADS = BM * BN / (TM * TN);
constexpr int A_BYTES = BM * BK * 4;
constexpr int B_BYTES = BK * BN * 4;
constexpr int SMEM = 1024 + STAGES * (A_BYTES + B_BYTES);
constexpr int B_SPAN = 32;  // columns of B in one box: a row of a box is 128 bytes

// Four neighbouring elements of D at once.
__device__ __forceinline__ void store4(float* D, float alpha, const float* acc, float beta, const float* C) {
  float4 d = {alpha * acc[0], alpha * acc[1], alpha * acc[2], alpha * acc[3]};
  if (beta != 0) {
    const float4 c = *reinterpret_cast<const float4*>(C);
    d.x += beta * c.x, d.y += beta * c.y, d.z += beta * c.z, d.w += beta * c.w;
  }
  *reinterpret_cast<float4*>(D) = d;
}

// Starts the copies of k-tile `tile` into its ring slot; called by one thread.
__device__ __forceinline__ void load_tile(char* ring, Barrier* full, const TensorMap& map_a, const TensorMap& map_b, int tile) {
  const int slot = tile % STAGES;
  char* As = ring + slot * (A_BYTES + B_BYTES);
  barrier_expect(&full[slot], A_BYTES + B_BYTES);
  tma_load(As, &map_a, &full[slot], tile * BK, blockIdx.y * BM);
  for (int j = 0; j < BN / B_SPAN; ++j)
    tma_load(As + A_BYTES + j * BK * 128, &map_b, &full[slot], blockIdx.x * BN + j * B_SPAN, tile * BK);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, int M, int N, int K,
     float alpha, float beta, const float* C, int64 ldc, float* D, int64 ldd) {
  extern __shared__ char smem[];
  __shared__ Barrier full[STAGES];
  char* ring = smem + (-smem_address(smem) & 1023);  // a swizzled tile starts at a multiple of 1024 bytes
  const int tiles = ceil_div(K, BK);
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < STAGES; ++slot) barrier_init(&full[slot], 1);
    barrier_init_fence();
    for (int tile = 0; tile < min(STAGES - 1, tiles); ++tile) load_tile(ring, full, map_a, map_b, tile);
  }

  const int row0 = blockIdx.y * BM;
  const int col0 = blockIdx.x * BN;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Lanes 4 x 8, numbered so that A's address ignores bit 0 of the lane and B's ignores bit 1: a
  // 128-bit load takes two passes instead of four when lanes i and i ^ 1 (or i ^ 2) agree.
  const int lane_m = lane >> 1 & 1 | lane >> 3 & 2;
  const int lane_n = lane & 1 | lane >> 1 & 6;
  const int ty = warp / (BN / WN) * WM + lane_m;  // this thread's rows are ty, ty + 4, ty + 8, ...
  const int tx = warp % (BN / WN) * WN + lane_n * 4;  // and its columns tx ... tx + 3, again B_SPAN further on

  // The swizzle repeats every 8 rows, so a thread meets only these places, 4 of A's and 8 of B's; all else in an
  // address is a constant. Worked out for every load they were a tenth of the loop's instructions.
  const char *a_at[4], *b_at[8];
  for (int c = 0; c < 4; ++c) a_at[c] = ring + swizzled(ty, c);
  for (int k = 0; k < 8; ++k) b_at[k] = ring + A_BYTES + tx / B_SPAN * BK * 128 + swizzled(k, lane_n);

  float acc[TM][TN] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    __syncthreads();  // everyone is done with the slot that the next copy overwrites (and, once, full[] is ready)
    if (threadIdx.x == 0 && (tile + STAGES - 1) * BK < K) load_tile(ring, full, map_a, map_b, tile + STAGES - 1);
    const int slot = tile % STAGES;
    const int base = slot * (A_BYTES + B_BYTES);
    barrier_wait(&full[slot], tile / STAGES & 1);  // waits for TMA

#pragma unroll
    for (int k = 0; k < BK; k += 4) {
      float b[4][TN];
      for (int kk = 0; kk < 4; ++kk)
        for (int j = 0; j < TN; j += 4)
          *reinterpret_cast<float4*>(&b[kk][j]) =
              *reinterpret_cast<const float4*>(b_at[(k + kk) % 8] + base + (k + kk) / 8 * 1024 + j / 4 * BK * 128);
      for (int i = 0; i < TM; ++i) {
        const int half = (k / 16 ^ i & 1) * 64;  // rows 4, 12, 20, ... of a thread lie with bit 2 of the chunk flipped
        float a[4];                              // along k
        *reinterpret_cast<float4*>(a) = *reinterpret_cast<const float4*>(a_at[k / 4 % 4] + base + i * 4 * 128 + half);
        for (int kk = 0; kk < 4; ++kk)
          for (int j = 0; j < TN; ++j) acc[i][j] += a[kk] * b[kk][j];
      }
    }
  }
  for (int i = 0; i < TM; ++i)
    for (int j = 0; j < TN; j += 4) {
      const int row = row0 + ty + i * 4, col = col0 + tx + j / 4 * B_SPAN;
      if (row < M && col < N) store4(&D[row * ldd + col], alpha, &acc[i][j], beta, &C[row * ldc + col]);
    }
}
