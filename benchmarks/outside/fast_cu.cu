// SPDX-License-Identifier: Apache-2.0
// Launches kernel KERNEL of a checkout of fast.cu (examples/matmul) on a small problem: C (column-major) = A * B.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cudaTypedefs.h>

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cuda/barrier>
#include <vector>

typedef __nv_bfloat16 bf16;
#define CEIL_DIV(M, N) (((M) + (N) - 1) / (N))
#define cudaCheck(e) (void)(e)
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#include HEADER

int main(int, char** argv) {
    const int m = atoi(argv[1]), n = atoi(argv[2]), k = atoi(argv[3]);
    bf16 *a, *b, *c;
    cudaMalloc((void**)&a, sizeof(bf16) * m * k);
    cudaMalloc((void**)&b, sizeof(bf16) * k * n);
    cudaMalloc((void**)&c, sizeof(bf16) * m * n);
    unsigned seed = 1;
    for (bf16* x : {a, b})
        for (int i = 0; i < (x == a ? m * k : k * n); ++i) {
            seed = seed * 1664525u + 1013904223u;
            x[i] = __float2bfloat16((int)(seed >> 28) - 8.f);
        }
#if KERNEL > 2  // with a last argument for clocks, which may be null
    PASTE(runKernel, KERNEL)(m, n, k, a, b, c, nullptr);
#else
    PASTE(runKernel, KERNEL)(m, n, k, a, b, c);
#endif
    return 0;
}
