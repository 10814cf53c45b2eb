// SPDX-License-Identifier: Apache-2.0
// Which SMs run the CTAs of a launch in clusters, and which SMs' requests for the same bytes L2 sees once.
//
//   nvcc -O2 -std=c++17 -gencode arch=compute_90a,code=sm_90a -o gpcs benchmarks/probes/gpcs.cu
//   ./gpcs                                              SMs of the CTAs without clusters (0) and in clusters of 1, 2, 4 and 8
//   ncu --metrics lts__t_sectors_srcunit_tex_op_read.sum --csv ./gpcs 0     the sectors that SM 0 and each SM read
//
// The launches of the second are: SM 0 alone, then SM 0 with SM 0, 1, 2, ... Two SMs whose requests are merged read as
// many sectors as one.

#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

constexpr int kChunk = 4096, kRing = 16, kChunks = 512;  // 2 MiB in copies of 4 KiB, 16 of them under way
constexpr int kShared = 200 * 1024;                      // one CTA to an SM

__device__ int sm() {
  int found;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(found));
  return found;
}

__device__ unsigned shared(const void* place) { return static_cast<unsigned>(__cvta_generic_to_shared(place)); }

__global__ void place(int* sms) {
  if (threadIdx.x == 0) sms[blockIdx.x] = sm();
  for (const long long begin = clock64(); clock64() - begin < 20000;) {
  }
}

// CTAs on two SMs read the same bytes from the same moment on; the others end at once.
__global__ void read(const char* source, int first, int second, unsigned* arrived) {
  extern __shared__ __align__(128) char ring[];
  __shared__ __align__(8) unsigned long long full[kRing];
  if ((sm() != first && sm() != second) || threadIdx.x != 0) return;
  for (auto& barrier : full) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared(&barrier)));
  asm volatile("fence.proxy.async;");
  atomicAdd(arrived, 1);
  while (atomicAdd(arrived, 0) < (first == second ? 1 : 2)) {
  }
  auto load = [&](int chunk) {
    const int stage = chunk % kRing;
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared(&full[stage])), "r"(kChunk));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared(ring + stage * kChunk)),
                 "l"(source + static_cast<long>(chunk) * kChunk), "r"(kChunk), "r"(shared(&full[stage]))
                 : "memory");
  };
  for (int chunk = 0; chunk < kRing; ++chunk) load(chunk);
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    for (unsigned there = 0; !there;)
      asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                   : "=r"(there)
                   : "r"(shared(&full[chunk % kRing])), "r"(chunk / kRing & 1)
                   : "memory");
    if (chunk + kRing < kChunks) load(chunk + kRing);
  }
}

int main(int count, char** arguments) {
  cudaDeviceProp gpu;
  cudaGetDeviceProperties(&gpu, 0);
  const int sms = gpu.multiProcessorCount;
  cudaFuncSetAttribute(place, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  cudaFuncSetAttribute(read, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (count > 1) {
    char* source;
    unsigned* arrived;
    cudaMalloc(&source, kChunk * kChunks);
    cudaMalloc(&arrived, sizeof *arrived);
    const int first = atoi(arguments[1]);
    for (int i = -1; i < sms; ++i) {
      cudaMemset(arrived, 0, sizeof *arrived);
      read<<<sms, 32, kShared>>>(source, first, i < 0 ? first : i, arrived);
    }
    printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
    return 0;
  }
  int* there;
  cudaMalloc(&there, sms * sizeof *there);
  for (unsigned size : {0u, 1u, 2u, 4u, 8u}) {
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {size, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(size ? sms / size * size : sms);
    config.blockDim = dim3(32);
    config.dynamicSmemBytes = kShared;
    config.attrs = &cluster;
    config.numAttrs = size > 0;
    std::vector<int> found(config.gridDim.x);
    const cudaError_t error = cudaLaunchKernelEx(&config, place, there);
    cudaMemcpy(found.data(), there, found.size() * sizeof(int), cudaMemcpyDeviceToHost);
    printf("clusters of %u, %s:", size, cudaGetErrorString(error));
    for (int each : found) printf(" %d", each);
    printf("\n");
  }
}
