// SPDX-License-Identifier: Apache-2.0
// Launches a GEMM of CUTLASS' collective builder on a small problem: D (row-major) = A (row) * B (column), bf16.
// SCHEDULE, EPILOGUE, CLUSTER_M, CLUSTER_N, TILE_M and TILE_N are given on the command line of the compiler.
#include <cstdio>
#include <cstdlib>

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/util/packed_stride.hpp"

using namespace cute;
using Element = cutlass::bfloat16_t;
using CtaTile = Shape<Int<TILE_M>, Int<TILE_N>, _64>;
using Cluster = Shape<Int<CLUSTER_M>, Int<CLUSTER_N>, _1>;
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, CtaTile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto,
    float, float, Element, Row, 8, Element, Row, 8, cutlass::epilogue::EPILOGUE>::CollectiveOp;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, Row, 8, Element, Column, 8, float, CtaTile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
    cutlass::gemm::SCHEDULE>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

int main(int, char** argv) {
    const int m = atoi(argv[1]), n = atoi(argv[2]), k = atoi(argv[3]);
    Element *a, *b, *d;
    cudaMalloc((void**)&a, sizeof(Element) * m * k);
    cudaMalloc((void**)&b, sizeof(Element) * k * n);
    cudaMalloc((void**)&d, sizeof(Element) * m * n);
    unsigned seed = 1;
    for (Element* x : {a, b})
        for (int i = 0; i < (x == a ? m * k : k * n); ++i) {
            seed = seed * 1664525u + 1013904223u;
            x[i] = Element((int)(seed >> 28) - 8.f);
        }
    cutlass::KernelHardwareInfo device;
    device.sm_count = 4;
    auto stride = [](auto kind, int rows, int columns) {
        return cutlass::make_cute_packed_stride(kind, make_shape(rows, columns, 1));
    };
    typename Gemm::Arguments arguments{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {m, n, k, 1},
        {a, stride(typename Kernel::StrideA{}, m, k), b, stride(typename Kernel::StrideB{}, n, k)},
        {{1.f, 0.f}, nullptr, stride(typename Kernel::StrideC{}, m, n), d, stride(typename Kernel::StrideD{}, m, n)},
        device};
    Gemm gemm;
    void* workspace = nullptr;
    if (size_t bytes = Gemm::get_workspace_size(arguments)) cudaMalloc(&workspace, bytes);
    if (gemm.can_implement(arguments) != cutlass::Status::kSuccess) return 2;
    if (gemm.initialize(arguments, workspace) != cutlass::Status::kSuccess) return 3;
    return gemm.run() != cutlass::Status::kSuccess;
}
