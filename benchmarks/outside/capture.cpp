// SPDX-License-Identifier: Apache-2.0
// Stands in for the CUDA runtime, so that a program's host code runs without a GPU and each launch is written down.
//
// "Device" memory is host memory at addresses of its own, which the reader maps again. A launch goes to the folder
// CAPTURE: `launch.N` (a line of text: kernel, grid, block, cluster, shared bytes, dependent or not; then the parameters)
// and `memory.N` (what the allocations held). The sizes of a kernel's parameters come from the file CAPTURE/parameters
// (name, count, sizes), which is made from its PTX. Tensor maps are placeholders whose fields go to `maps`.
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace {

struct Allocation {
    void* address;
    size_t bytes;
};

struct State {
    std::string folder = getenv("CAPTURE");
    std::map<const void*, std::string> kernels;
    std::map<std::string, std::vector<size_t>> parameters;
    std::vector<Allocation> allocations;
    char* next = reinterpret_cast<char*>(0x600000000000);
    int launches = 0, maps = 0;
    dim3 grid, block;
    size_t shared = 0;

    State() {
        std::ifstream file(folder + "/parameters");
        std::string name;
        size_t count;
        while (file >> name >> count) {
            auto& sizes = parameters[name];
            sizes.resize(count);
            for (auto& size : sizes) file >> size;
        }
    }
};

State& state() {
    static State* made = new State;
    return *made;
}

cudaError_t record(const void* kernel, dim3 grid, dim3 block, size_t shared, void** arguments, dim3 cluster, int pdl) {
    State& s = state();
    const std::string& name = s.kernels[kernel];
    const std::string number = std::to_string(s.launches++);
    FILE* out = fopen((s.folder + "/launch." + number).c_str(), "wb");
    fprintf(out, "%s %u %u %u %u %u %u %u %u %u %zu %d %zu\n", name.c_str(), grid.x, grid.y, grid.z, block.x, block.y,
            block.z, cluster.x, cluster.y, cluster.z, shared, pdl, s.allocations.size());
    for (auto& a : s.allocations) fprintf(out, "%zu %zu\n", reinterpret_cast<size_t>(a.address), a.bytes);
    const auto& sizes = s.parameters[name];
    for (size_t i = 0; i < sizes.size(); ++i) fwrite(arguments[i], 1, sizes[i], out);
    fclose(out);
    out = fopen((s.folder + "/memory." + number).c_str(), "wb");
    for (auto& a : s.allocations) fwrite(a.address, 1, a.bytes, out);
    fclose(out);
    return cudaSuccess;
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) {
    static void* handle;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
    state().kernels[host] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
    *kernel = (cudaKernel_t)host;
    return cudaSuccess;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void*) {
    State& s = state();
    s.grid = grid, s.block = block, s.shared = shared;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void*) {
    State& s = state();
    *grid = s.grid, *block = s.block, *shared = s.shared;
    return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* f, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t) {
    return record(f, grid, block, shared, arguments, dim3(1, 1, 1), 0);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t f, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t) {
    return record((const void*)f, grid, block, shared, arguments, dim3(1, 1, 1), 0);
}
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t f, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t) {
    return record((const void*)f, grid, block, shared, arguments, dim3(1, 1, 1), 0);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void** arguments) {
    dim3 cluster(1, 1, 1);
    int pdl = 0;
    for (unsigned i = 0; i < c->numAttrs; ++i) {
        const auto& value = c->attrs[i].val;
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
            cluster = dim3(value.clusterDim.x, value.clusterDim.y, value.clusterDim.z);
        if (c->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
            pdl = value.programmaticStreamSerializationAllowed;
    }
    return record(f, c->gridDim, c->blockDim, c->dynamicSmemBytes, arguments, cluster, pdl);
}
cudaError_t cudaMalloc(void** p, size_t bytes) {
    State& s = state();
    const size_t room = (bytes + 8191) / 4096 * 4096;
    *p = mmap(s.next, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    s.next += room + (1 << 20);
    s.allocations.push_back({*p, bytes});
    return cudaSuccess;
}
cudaError_t cudaFree(void*) { return cudaSuccess; }
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    memcpy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    memset(to, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) { return cudaMemset(to, value, bytes); }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
const char* cudaGetErrorName(cudaError_t) { return "error"; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void*) {
    memset(out, 0, sizeof *out);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int) {
    *value = what == cudaDevAttrMultiProcessorCount        ? 4
             : what == cudaDevAttrComputeCapabilityMajor   ? 9
             : what == cudaDevAttrComputeCapabilityMinor   ? 0
                                                           : 227 * 1024;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int) {
    memset(out, 0, sizeof *out);
    out->major = 9;
    out->multiProcessorCount = 4;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int, size_t, unsigned) {
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* n, const void*, const cudaLaunchConfig_t*) {
    *n = 2;
    return cudaSuccess;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* base,
                                const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    State& s = state();
    FILE* out = fopen((s.folder + "/maps").c_str(), "a");
    fprintf(out, "%d %u %zu", (int)type, rank, reinterpret_cast<size_t>(base));
    for (unsigned i = 0; i < rank; ++i) fprintf(out, " %zu", (size_t)extents[i]);
    for (unsigned i = 0; i + 1 < rank; ++i) fprintf(out, " %zu", (size_t)strides[i]);
    for (unsigned i = 0; i < rank; ++i) fprintf(out, " %u", box[i]);
    fprintf(out, " %d\n", (int)swizzle);
    fclose(out);
    memset(map, 0, sizeof *map);
    memcpy(map, "TMAPTMAP", 8);
    reinterpret_cast<int*>(map)[2] = s.maps++;
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) {
    *text = "an error";
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult, const char** text) { return cuGetErrorString(CUDA_SUCCESS, text); }
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** f, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
    *f = strcmp(name, "cuTensorMapEncodeTiled") == 0 ? (void*)cuTensorMapEncodeTiled : nullptr;
    if (result) *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char* name, void** f, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* result) {
    return cudaGetDriverEntryPointByVersion(name, f, 0, flags, result);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* p) {
    memset(out, 0, sizeof *out);
    out->type = cudaMemoryTypeDevice;
    out->devicePointer = (void*)p;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t*) { return cudaSuccess; }

}  // extern "C"
