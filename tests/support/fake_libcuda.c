/* SPDX-License-Identifier: Apache-2.0
 * A stand-in for libcuda: keeps no device, and writes every launch to $FAKE_CUDA_LOG as text, parameters in hex.
 * $FAKE_CUDA_SIZES lists the bytes of each parameter, launch by launch: "8,8,4;12,128,128". A kernel that was not
 * loaded before its launch is refused, as in a graph's capture; $FAKE_CUDA_FULL refuses to load one. */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CUresult CUDAAPI cuInit(unsigned flags) { return (CUresult)flags; }
CUresult CUDAAPI cuCtxGetDevice(CUdevice *device) { *device = 0; return CUDA_SUCCESS; }
CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *a, void **b, unsigned c,
                                   CUlibraryOption *d, void **e, unsigned f) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  *library = (CUlibrary)code;
  return memcmp(code, "\177ELF", 4) ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
}
CUresult CUDAAPI cuLibraryUnload(CUlibrary library) {
  (void)library;
  FILE *log = fopen(getenv("FAKE_CUDA_LOG"), "a");
  fputs("unloaded\n", log);
  return fclose(log) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
CUresult CUDAAPI cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
  (void)library;
  *kernel = (CUkernel)name;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
  *function = (CUfunction)kernel;
  return CUDA_SUCCESS;
}
static unsigned loaded = 0;
CUresult CUDAAPI cuFuncLoad(CUfunction function) {
  (void)function;
  ++loaded;
  return getenv("FAKE_CUDA_FULL") ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  (void)kernel, (void)device;
  return attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value > 0 ? CUDA_SUCCESS
                                                                                   : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
  (void)extra;
  if (!loaded) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  FILE *log = fopen(getenv("FAKE_CUDA_LOG"), "a");
  unsigned cluster[3] = {1, 1, 1}, pdl = 0;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute *a = &config->attrs[i];
    if (a->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      cluster[0] = a->value.clusterDim.x, cluster[1] = a->value.clusterDim.y, cluster[2] = a->value.clusterDim.z;
    if (a->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      pdl = (unsigned)a->value.programmaticStreamSerializationAllowed;
  }
  fprintf(log, "%s %u %u %u %u %u %u %u %u %u %u %u", (const char *)function, config->gridDimX, config->gridDimY,
          config->gridDimZ, config->blockDimX, config->blockDimY, config->blockDimZ, cluster[0], cluster[1],
          cluster[2], config->sharedMemBytes, pdl);
  static const char *next = NULL;
  if (!next) next = getenv("FAKE_CUDA_SIZES");
  for (unsigned i = 0; *next && *next != ';'; ++i) {
    char *end;
    unsigned long size = strtoul(next, &end, 10);
    next = end + (*end == ',');
    fputc(' ', log);
    for (unsigned long j = 0; j < size; ++j) fprintf(log, "%02x", ((unsigned char *)params[i])[j]);
  }
  next += *next == ';';
  fputc('\n', log);
  return fclose(log) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
