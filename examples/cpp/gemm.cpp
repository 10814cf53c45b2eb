// SPDX-License-Identifier: Apache-2.0
// A GEMM from C++ with the CUDA driver alone: D = alpha * A @ B, bf16, M x N x K = 128 x 64 x 256.
//
//   python examples/cpp/header.py gemm.h
//   g++ -std=c++17 -I. -I$CUDA_HOME/include examples/cpp/gemm.cpp -o gemm -lcuda && ./gemm
#include <cmath>
#include <cstdio>
#include <vector>

#include "gemm.h"

static float from_bf16(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static uint16_t to_bf16(float x) {  // of numbers that bf16 holds exactly
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return (uint16_t)(bits >> 16);
}

int main() {
  const int m = 128, n = 64, k = 256;
  std::vector<uint16_t> a(m * k), b(k * n), d(m * n, 0xffff);
  for (int i = 0; i < m * k; ++i) a[i] = to_bf16((float)(i * 7 % 13 - 6));
  for (int i = 0; i < k * n; ++i) b[i] = to_bf16((float)(i * 5 % 11 - 5));

  CUdevice device;
  CUcontext context;
  CUdeviceptr pa, pb, pd, counters = 0, workspace = 0;
  CUresult status = cuInit(0);
  if (!status) status = cuDeviceGet(&device, 0);
  if (!status) status = cuDevicePrimaryCtxRetain(&context, device);
  if (!status) status = cuCtxSetCurrent(context);
  if (!status) status = cuMemAlloc(&pa, 2 * a.size());
  if (!status) status = cuMemAlloc(&pb, 2 * b.size());
  if (!status) status = cuMemAlloc(&pd, 2 * d.size());
  if (!status) status = cuMemcpyHtoD(pa, a.data(), 2 * a.size());
  if (!status) status = cuMemcpyHtoD(pb, b.data(), 2 * b.size());
  if (!status) status = cuMemcpyHtoD(pd, d.data(), 2 * d.size());
  if (!status && gemm_0_workspace_bytes > 0) status = cuMemAlloc(&workspace, gemm_0_workspace_bytes);
  if (!status && gemm_0_counter_bytes > 0) {
    status = cuMemAlloc(&counters, gemm_0_counter_bytes);
    if (!status) status = cuMemsetD8(counters, 0, gemm_0_counter_bytes);
  }

  gemm_module module;
  if (!status) status = gemm_load(&module);
  gemm_0_args args = {pa, pb, pd, workspace, counters, 0.5f};
  for (int i = 0; i < 3 && !status; ++i) status = gemm_0(&module, &args, nullptr);
  if (!status) status = cuCtxSynchronize();
  if (!status) status = cuMemcpyDtoH(d.data(), pd, 2 * d.size());
  if (status) {
    const char *name = "?";
    cuGetErrorName(status, &name);
    std::printf("CUDA: %s\n", name);
    return 1;
  }

  double worst = 0, largest = 0;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int x = 0; x < k; ++x) sum += from_bf16(a[i * k + x]) * (double)from_bf16(b[x * n + j]);
      worst = std::fmax(worst, std::fabs(from_bf16(d[i * n + j]) - 0.5 * sum));
      largest = std::fmax(largest, std::fabs(0.5 * sum));
    }
  gemm_unload(&module);
  std::printf("relative error %.1e\n", worst / largest);
  return worst <= largest / 256 ? 0 : 1;  // bf16 keeps 8 bits
}
