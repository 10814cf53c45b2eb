// SPDX-License-Identifier: Apache-2.0
// How fast TMA loads boxes with rows of 128, 64 or 32 bytes, at pitches of whole cache lines (4608, 4480), of whole
// sectors (4384) and of neither (4400).
//
//   nvcc -O2 -std=c++17 -gencode arch=compute_90a,code=sm_90a -o boxes benchmarks/probes/boxes.cu
//   ./boxes
//
// One thread of each CTA keeps a ring of stages under way, each of `kStage` bytes in boxes of 64 rows. All data is in L2.

#include <cstdio>
#include <cstdlib>

#include <cuda.h>
#include <cuda_runtime.h>

constexpr int kStage = 32768, kRing = 6, kStages = 400, kRows = 64, kLeast = 1024;
constexpr int kShared = kRing * kStage + kLeast;

__device__ unsigned shared(const void* place) { return static_cast<unsigned>(__cvta_generic_to_shared(place)); }

template <int kCtas>
__global__ void __launch_bounds__(64) load(const __grid_constant__ CUtensorMap map, int width, int deep, bool same, long long* cycles) {
  extern __shared__ char raw[];
  __shared__ __align__(8) unsigned long long full[kRing], empty[kRing];
  const unsigned ring = (shared(raw) + kLeast - 1) / kLeast * kLeast;
  unsigned rank = 0;
  if (kCtas > 1) asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) {
    for (int i = 0; i < kRing; ++i) {
      asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared(&full[i])));
      asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared(&empty[i])), "r"(kCtas));
    }
    asm volatile("fence.proxy.async;");
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  if (kCtas > 1) asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  auto wait = [&](unsigned bar, int parity) {
    for (unsigned there = 0; !there;)
      asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                   : "=r"(there)
                   : "r"(bar), "r"(parity)
                   : "memory");
  };
  if (threadIdx.x == 0) {
    const int rows = kRows / kCtas, boxes = kStage / (width * kRows);  // a CTA of a cluster loads its share of the rows
    const int first = same ? 0 : blockIdx.x / kCtas * 7;  // merged in a GPC if the same
    auto issue = [&](int i) {
      const int stage = i % kRing;
      const unsigned bar = shared(&full[stage]);
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(kStage) : "memory");
      for (int box = 0; box < boxes; ++box) {
        const unsigned place = ring + stage * kStage + (box * kRows + rank * rows) * width;
        const int x = box * width / 2, y = ((first + i) % deep) * kRows + rank * rows;
        if (kCtas == 1)
          asm volatile(
              "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(place),
              "l"(&map), "r"(x), "r"(y), "r"(bar)
              : "memory");
        else
          asm volatile(
              "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
                  place),
              "l"(&map), "r"(x), "r"(y), "r"(bar), "h"((short)((1 << kCtas) - 1))
              : "memory");
      }
    };
    for (int i = 0; i < kStages; ++i) {
      if (i >= kRing) wait(shared(&empty[i % kRing]), (i / kRing & 1) ^ 1);
      issue(i);
    }
  }
  if (threadIdx.x == 32) {
    const long long begin = clock64();
    for (int i = 0; i < kStages; ++i) {
      wait(shared(&full[i % kRing]), i / kRing & 1);
      for (unsigned peer = 0; peer < kCtas; ++peer)
        asm volatile("{.reg .b32 a; mapa.shared::cluster.u32 a, %0, %1; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [a];}" ::"r"(
                         shared(&empty[i % kRing])),
                     "r"(peer)
                     : "memory");
    }
    cycles[blockIdx.x] = clock64() - begin;
  }
  __syncthreads();
  if (kCtas > 1) asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

int main() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
  auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  char* data;
  long long *cycles, host[132];
  cudaMalloc(&data, 64 << 20);
  cudaMemset(data, 0, 64 << 20);
  cudaMalloc(&cycles, sizeof host);
  cudaFuncSetAttribute(load<1>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  cudaFuncSetAttribute(load<2>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  std::printf("ctas,sms,same,width,pitch,cycles_per_stage,bytes_per_cycle,rows_per_cycle\n");
  for (int ctas : {1, 2})
    for (int grid : {2, 132})
      for (bool same : {false, true})
      for (int width : {128, 64, 32})
        for (int pitch : {4608, 4480, 4400, 4384}) {
          CUtensorMap map;
          const int deep = 36;
          const cuuint64_t extent[2] = {2048, static_cast<cuuint64_t>(deep * kRows)}, stride[1] = {static_cast<cuuint64_t>(pitch)};
          const cuuint32_t box[2] = {static_cast<cuuint32_t>(width / 2), static_cast<cuuint32_t>(kRows / ctas)}, one[2] = {1, 1};
          const auto swizzle = width == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : width == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_32B;
          if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, data, extent, stride, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)) {
            std::printf("no map\n");
            continue;
          }
          cudaLaunchConfig_t launch = {};
          launch.gridDim = grid, launch.blockDim = 64, launch.dynamicSmemBytes = kShared;
          cudaLaunchAttribute size = {};
          size.id = cudaLaunchAttributeClusterDimension, size.val.clusterDim = {static_cast<unsigned>(ctas), 1, 1};
          launch.attrs = &size, launch.numAttrs = 1;
          for (int again = 0; again < 2; ++again)
            if (ctas == 1)
              cudaLaunchKernelEx(&launch, load<1>, map, width, deep, same, cycles);
            else
              cudaLaunchKernelEx(&launch, load<2>, map, width, deep, same, cycles);
          cudaMemcpy(host, cycles, grid * sizeof *host, cudaMemcpyDeviceToHost);
          double sum = 0;
          for (int i = 0; i < grid; ++i) sum += static_cast<double>(host[i]) / grid / kStages;
          std::printf("%d,%d,%d,%d,%d,%.0f,%.1f,%.2f\n", ctas, grid, same, width, pitch, sum, kStage / sum, kStage / sum / width);
          if (const auto error = cudaGetLastError()) return std::printf("%s\n", cudaGetErrorString(error)), 1;
        }
  return 0;
}
