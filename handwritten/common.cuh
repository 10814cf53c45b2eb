// SPDX-License-Identifier: Apache-2.0
// Pieces shared by the stages. A section number names the chapter of the PTX ISA (9.0) that defines
// the instruction. Nothing here is an idea of the ladder: each stage's own file holds its own.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using int64 = long long;

// ---- Operands -----------------------------------------------------------------------------------
// HALF chooses the 16-bit type of a build; A_COL and B_COL say that an operand is column-major.
#ifndef HALF
#define HALF 0
#endif
#ifndef A_COL
#define A_COL 0
#endif
#ifndef B_COL
#define B_COL 0
#endif

#if HALF
using half16 = __half;
using half16x2 = __half2;
#define HALF_PTX "f16"
__device__ __forceinline__ half16x2 pack(float low, float high) { return __floats2half2_rn(low, high); }
__device__ __forceinline__ float2 unpack(half16x2 v) { return __half22float2(v); }
#else
using half16 = __nv_bfloat16;
using half16x2 = __nv_bfloat162;
#define HALF_PTX "bf16"
__device__ __forceinline__ half16x2 pack(float low, float high) { return __floats2bfloat162_rn(low, high); }
__device__ __forceinline__ float2 unpack(half16x2 v) { return __bfloat1622float2(v); }
#endif

// Where element (row, col) lies in a matrix whose rows (or columns) start ld elements apart.
template <bool COL>
__device__ __forceinline__ int64 offset(int row, int col, int64 ld) {
  return COL ? col * ld + row : row * ld + col;
}

// alpha * acc + beta * C[at]. C is not read when beta is zero: it may be absent or hold NaN.
template <class T>
__device__ __forceinline__ T blend(float alpha, float acc, float beta, const T* C, int64 at) {
  float d = alpha * acc;
  if (beta != 0) d += beta * float(C[at]);
  return T(d);
}

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// ---- Addresses in shared memory -----------------------------------------------------------------
__device__ __forceinline__ unsigned smem_address(const void* p) { return __cvta_generic_to_shared(p); }

// ---- cp.async (9.7.9.25.3): global to shared without a register, by each thread -------------------
// Copies 16 bytes, of which the first `bytes` are read and the rest filled with zero.
__device__ __forceinline__ void cp_async16(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_address(to)), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N of this thread's committed groups are still under way.
template <int N>
__device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// ---- mbarrier (9.7.13.15) ------------------------------------------------------------------------
using Barrier = unsigned long long;

__device__ __forceinline__ void barrier_init(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(barrier)), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the asynchronous proxy and to the cluster.
__device__ __forceinline__ void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// One arrival that also announces how many bytes TMA will deliver in this phase.
__device__ __forceinline__ void barrier_expect(Barrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_address(barrier)) : "memory");
}
// Waits until the phase with this parity has completed.
__device__ __forceinline__ void barrier_wait(Barrier* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(smem_address(barrier)), "r"(parity) : "memory");
}

// ---- TMA (9.7.9.25.5): boxes between global and shared memory, issued by one thread ---------------
struct alignas(64) TensorMap {  // the driver's CUtensorMap
  char bytes[128];
};

// Starts copying the box at (x, y), x along the contiguous dimension; `barrier` counts its bytes.
__device__ __forceinline__ void tma_load(void* to, const TensorMap* map, Barrier* barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          smem_address(to)), "l"(map), "r"(smem_address(barrier)), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void tma_prefetch(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// A row of a 128-byte-swizzled tile holds 8 chunks of 16 bytes; TMA puts chunk c of row r at c ^ (r % 8)
// ("Swizzling modes", 5.5.6). Returns the byte offset of a chunk; the tile starts at a multiple of 1024.
__device__ __forceinline__ int swizzled(int row, int chunk) { return row * 128 + ((chunk ^ row & 7) << 4); }

__device__ __forceinline__ void tma_store(const TensorMap* map, const void* from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
               "r"(smem_address(from)), "r"(x), "r"(y) : "memory");
}
// The same load, delivered to the same address (and barrier) of every CTA of the cluster in `mask`.
__device__ __forceinline__ void tma_load_multicast(void* to, const TensorMap* map, Barrier* barrier, int x, int y,
                                                   unsigned short mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(smem_address(to)), "l"(map), "r"(smem_address(barrier)), "r"(x), "r"(y),
      "h"(mask) : "memory");
}
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until all but N of this thread's committed stores have read their shared memory.
template <int N>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
// Orders this thread's ordinary accesses to shared memory before later ones by TMA or wgmma (9.7.13.4).
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- Warpgroups and clusters ---------------------------------------------------------------------
// bar.sync (9.7.13.1) among `threads` threads that use the same id; id 0 belongs to __syncthreads.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// setmaxnreg (9.7.20.5): a warpgroup gives registers back, or takes more from what others gave.
template <int N>
__device__ __forceinline__ void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N>
__device__ __forceinline__ void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// barrier.cluster (9.7.13.3): all threads of all CTAs of the cluster.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// Arrives on the barrier at the same address in the CTA of that rank (mapa, 9.7.9.22). It hands back a slot
// that wgmma has finished reading, so no write of this thread needs releasing to the cluster: with
// .release.cluster the compiler puts a MEMBAR.ALL.GPU before every arrival, once per tile of k.
__device__ __forceinline__ void barrier_arrive_remote(Barrier* barrier, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(smem_address(barrier)), "r"(rank) : "memory");
}

// ---- ldmatrix and mma.sync (9.7.14.5): one warp, operands in registers ----------------------------
// Four 8 x 8 matrices of 16-bit elements; lane i gives the address (smem_address) of row i % 8 of matrix i / 8.
// TRANS hands each lane the transposed matrix's part.
template <bool TRANS>
__device__ __forceinline__ void ldmatrix4(unsigned (&r)[4], unsigned row) {
  if (TRANS)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
// d (16 x 8) += a (16 x 16) * b (16 x 8)
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." HALF_PTX "." HALF_PTX
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- wgmma (9.7.15): D (64 x N, fp32, registers) += A (64 x 16) * B (16 x N), both in shared memory ---
// An operand tile is rows of 128 bytes, 128-byte swizzled, as TMA writes them. K-major: a row holds 64 of
// k. M- or N-major: a row holds 64 of m (or n), and tiles wider than 64 are several such boxes of BK rows.
constexpr bool A_MN_MAJOR = A_COL;
constexpr bool B_MN_MAJOR = !B_COL;

// The matrix descriptor (9.7.15.5.1): address, strides and swizzle mode, in units of 16 bytes.
template <bool MN_MAJOR, int BK>
__device__ __forceinline__ unsigned long long descriptor(const void* tile) {
  constexpr unsigned long long SWIZZLE_128B = 1ull << 62;
  constexpr unsigned long long EIGHT_ROWS = 1024 >> 4;                           // one swizzle pattern
  constexpr unsigned long long NEXT_BOX = MN_MAJOR ? BK * 128 >> 4 : 1;          // unused when K-major
  return SWIZZLE_128B | EIGHT_ROWS << 32 | NEXT_BOX << 16 | (smem_address(tile) & 0x3ffff) >> 4;
}
// How far a descriptor moves for the next 16 of k: 32 bytes along a row, or 16 rows.
template <bool MN_MAJOR>
constexpr int K_STEP = (MN_MAJOR ? 16 * 128 : 32) >> 4;

// Starts the copy of an operand tile: `ROWS` of m (or n) from mn0, BK of k from k0.
template <bool MN_MAJOR, int ROWS, int BK>
__device__ __forceinline__ void load_operand(char* to, const TensorMap* map, Barrier* barrier, int mn0, int k0) {
  if (MN_MAJOR) {
    for (int box = 0; box < ROWS / 64; ++box) tma_load(to + box * BK * 128, map, barrier, mn0 + box * 64, k0);
  } else {
    tma_load(to, map, barrier, k0, mn0);
  }
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

#define ACC4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define ACC16(i) ACC4(i), ACC4((i) + 4), ACC4((i) + 8), ACC4((i) + 12)
#define ACC64(i) ACC16(i), ACC16((i) + 16), ACC16((i) + 32), ACC16((i) + 48)
#define REG0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define REG1 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REG2 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define REG3 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define REG4 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define REG5 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define REG6 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define REG7 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// The asm text of one wgmma: register list, then operand numbers of A, B, accumulate and the two majors.
#define WGMMA_TEXT(n, list, a, b, add, ta, tb)                                                          \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %" #add ", 0;\n"                                                  \
  "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." HALF_PTX "." HALF_PTX " {" list "}, %" #a ", %" #b    \
  ", p, 1, 1, %" #ta ", %" #tb ";\n}\n"
#define WGMMA_INPUTS "l"(a), "l"(b), "r"(int(add)), "n"(int(A_MN_MAJOR)), "n"(int(B_MN_MAJOR))

__device__ __forceinline__ void wgmma(float (&d)[16], unsigned long long a, unsigned long long b, bool add) {
  asm volatile(WGMMA_TEXT(32, REG0, 16, 17, 18, 19, 20) : ACC16(0) : WGMMA_INPUTS);
}
__device__ __forceinline__ void wgmma(float (&d)[32], unsigned long long a, unsigned long long b, bool add) {
  asm volatile(WGMMA_TEXT(64, REG0 "," REG1, 32, 33, 34, 35, 36) : ACC16(0), ACC16(16) : WGMMA_INPUTS);
}
__device__ __forceinline__ void wgmma(float (&d)[64], unsigned long long a, unsigned long long b, bool add) {
  asm volatile(WGMMA_TEXT(128, REG0 "," REG1 "," REG2 "," REG3, 64, 65, 66, 67, 68) : ACC64(0) : WGMMA_INPUTS);
}
__device__ __forceinline__ void wgmma(float (&d)[128], unsigned long long a, unsigned long long b, bool add) {
  asm volatile(WGMMA_TEXT(256, REG0 "," REG1 "," REG2 "," REG3 "," REG4 "," REG5 "," REG6 "," REG7, 128, 129, 130, 131, 132) : ACC64(0), ACC64(64) : WGMMA_INPUTS);
}

// ---- Epilogue of the 16-bit stages ------------------------------------------------------------------
// D = alpha * acc + beta * C, guarded at the edges. C is not read when beta is zero.
struct Output {
  int M, N;
  float alpha, beta;
  const half16* C;
  int64 ldc;
  half16* D;
  int64 ldd;

  __device__ __forceinline__ void element(int row, int col, float x) const {
    if (row < M && col < N) D[row * ldd + col] = blend(alpha, x, beta, C, row * ldc + col);
  }

  // Two neighbouring elements; col is even, so that both fit one aligned access when both are inside.
  __device__ __forceinline__ void pair(int row, int col, float x, float y) const {
    if (row >= M || col >= N) return;
    if (col + 1 == N) {
      D[row * ldd + col] = blend(alpha, x, beta, C, row * ldc + col);
      return;
    }
    x *= alpha, y *= alpha;
    if (beta != 0) {
      const float2 c = unpack(*reinterpret_cast<const half16x2*>(&C[row * ldc + col]));
      x += beta * c.x, y += beta * c.y;
    }
    *reinterpret_cast<half16x2*>(&D[row * ldd + col]) = pack(x, y);
  }

  // The eight elements of C from (row, col) on, 16 bytes; zeros where C is not read or not all of them are inside.
  __device__ __forceinline__ uint4 eight_of_c(int row, int col) const {
    if (beta == 0 || row >= M || col + 8 > N) return {};
    return *reinterpret_cast<const uint4*>(&C[row * ldc + col]);
  }

  // Eight neighbouring elements from shared memory, 16 bytes of D; col is a multiple of 8, c is eight_of_c's.
  __device__ __forceinline__ void eight(int row, int col, const float* acc, uint4 c) const {
    if (row >= M || col >= N) return;
    if (col + 8 > N) {
#pragma unroll 1
      for (int i = 0; col + i < N; ++i) D[row * ldd + col + i] = blend(alpha, acc[i], beta, C, row * ldc + col + i);
      return;
    }
    const float4 low = *reinterpret_cast<const float4*>(acc), high = *reinterpret_cast<const float4*>(acc + 4);
    *reinterpret_cast<uint4*>(&D[row * ldd + col]) = {blend2(low.x, low.y, c.x), blend2(low.z, low.w, c.y),
                                                      blend2(high.x, high.y, c.z), blend2(high.z, high.w, c.w)};
  }
  __device__ __forceinline__ void eight(int row, int col, const float* acc) const {
    eight(row, col, acc, eight_of_c(row, col));
  }

  // alpha * (x, y) + beta * c, where c and the result are two 16-bit elements side by side.
  __device__ __forceinline__ unsigned blend2(float x, float y, unsigned c) const {
    const float2 c2 = unpack(reinterpret_cast<const half16x2&>(c));
    const half16x2 d = pack(alpha * x + beta * c2.x, alpha * y + beta * c2.y);
    return reinterpret_cast<const unsigned&>(d);
  }
};

// A wgmma accumulator: in a group of 8 columns a thread holds 2 neighbours of row lane/4, and of the row 8 below.
template <int N>
__device__ __forceinline__ void store_accumulator(const Output& out, const float (&acc)[N], int row0, int col0) {
  const int row = row0 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  const int col = col0 + threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    out.pair(row, col + i * 2, acc[i], acc[i + 1]);
    out.pair(row + 8, col + i * 2, acc[i + 2], acc[i + 3]);
  }
}
