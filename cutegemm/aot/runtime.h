/* SPDX-License-Identifier: Apache-2.0 */
#include <cuda.h>
#include <stdint.h>
#include <string.h>

#ifndef CUTEGEMM_ARTEFACT_RUNTIME
#define CUTEGEMM_ARTEFACT_RUNTIME
/* One place of a launch's parameters that a call fills. kind: 0 an address, 1 an address rounded down to 16 bytes,
 * 2 four bytes of a number. */
typedef struct { uint32_t source, kind, offset; int64_t addend; } cutegemm_patch;

/* One launch: parameters as one block, with the offset of each. */
typedef struct {
  unsigned kernel, grid[3], block[3], cluster[3], smem, pdl, params, bytes, patches;
  const uint32_t *offsets;
  const unsigned char *block_bytes;
  const cutegemm_patch *patch;
} cutegemm_launch;

/* Puts a kernel's code on the device now: a first launch that does it cannot be captured in a graph. */
static inline CUresult cutegemm_load_now(CUkernel kernel) {
  CUfunction function;
  CUresult status = cuKernelGetFunction(&function, kernel);
#if CUDA_VERSION >= 12040
  if (!status) status = cuFuncLoad(function);
#endif
  return status;
}

static inline CUresult cutegemm_run(const CUkernel *kernels, const cutegemm_launch *launch, const uint64_t *sources,
                                    unsigned char *memory, void **pointers, CUstream stream) {
  unsigned char *base = (unsigned char *)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
  memcpy(base, launch->block_bytes, launch->bytes);
  for (unsigned i = 0; i < launch->patches; ++i) {
    const cutegemm_patch *p = &launch->patch[i];
    uint64_t value = sources[p->source] + (uint64_t)p->addend;
    if (p->kind == 1) value &= ~(uint64_t)15;
    memcpy(base + p->offset, &value, p->kind == 2 ? 4 : 8);
  }
  for (unsigned i = 0; i < launch->params; ++i) pointers[i] = base + launch->offsets[i];
  CUlaunchAttribute attributes[2];
  CUlaunchConfig config;
  memset(&config, 0, sizeof config);
  memset(attributes, 0, sizeof attributes);
  config.gridDimX = launch->grid[0], config.gridDimY = launch->grid[1], config.gridDimZ = launch->grid[2];
  config.blockDimX = launch->block[0], config.blockDimY = launch->block[1], config.blockDimZ = launch->block[2];
  config.sharedMemBytes = launch->smem;
  config.hStream = stream;
  config.attrs = attributes;
  if (launch->cluster[0] * launch->cluster[1] * launch->cluster[2] > 1) {
    CUlaunchAttribute *a = &attributes[config.numAttrs++];
    a->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    a->value.clusterDim.x = launch->cluster[0];
    a->value.clusterDim.y = launch->cluster[1];
    a->value.clusterDim.z = launch->cluster[2];
  }
  if (launch->pdl) {
    CUlaunchAttribute *a = &attributes[config.numAttrs++];
    a->id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    a->value.programmaticStreamSerializationAllowed = 1;
  }
  return cuLaunchKernelEx(&config, (CUfunction)kernels[launch->kernel], pointers, NULL);
}
#endif
