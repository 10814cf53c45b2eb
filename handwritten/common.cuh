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
