// SPDX-License-Identifier: Apache-2.0
// What the WMMA stages (09 to 13) share: the fragments' majors, and loads from shared memory.
#pragma once
#include <mma.h>

#include "common.cuh"

using namespace nvcuda;

template <bool COL>
struct Major {
  using type = wmma::row_major;
};
template <>
struct Major<true> {
  using type = wmma::col_major;
};
using FragmentA = wmma::fragment<wmma::matrix_a, 16, 16, 16, half16, Major<A_COL>::type>;
using FragmentB = wmma::fragment<wmma::matrix_b, 16, 16, 16, half16, Major<B_COL>::type>;
using Accumulator = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

// Loads a fragment from shared memory. For fp16 the compiler sees where the pointer leads and emits
// ldmatrix; for bf16 wmma::load_matrix_sync stays a generic load of 4 bytes, so the state space is said here.
#if HALF
__device__ __forceinline__ void load_shared(FragmentA& f, const half16* p, int ld) { wmma::load_matrix_sync(f, p, ld); }
__device__ __forceinline__ void load_shared(FragmentB& f, const half16* p, int ld) { wmma::load_matrix_sync(f, p, ld); }
#else
template <class Fragment>
__device__ __forceinline__ unsigned& word(Fragment& f, int i) { return reinterpret_cast<unsigned*>(f.x)[i]; }

#define WMMA_LOAD(operand, major)                                                                                    \
  asm volatile("wmma.load." operand ".sync.aligned." major ".m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"       \
               : "=r"(word(f, 0)), "=r"(word(f, 1)), "=r"(word(f, 2)), "=r"(word(f, 3))                              \
               : "r"(smem_address(p)), "r"(ld) : "memory")

__device__ __forceinline__ void load_shared(FragmentA& f, const half16* p, int ld) {
  if (A_COL) WMMA_LOAD("a", "col");
  else WMMA_LOAD("a", "row");
}
__device__ __forceinline__ void load_shared(FragmentB& f, const half16* p, int ld) {
  if (B_COL) WMMA_LOAD("b", "col");
  else WMMA_LOAD("b", "row");
}
#endif
