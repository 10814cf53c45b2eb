# SPDX-License-Identifier: Apache-2.0
"""The kernels, in the CuTe DSL for sm_90a. Importing a module of this package imports the DSL.

Drivers, one for each kernel family; a driver shows prologue, roles of warpgroups and the loop over output tiles:
    `warp_specialized`, `multistage`      GEMMs on the tensor cores
    `cuda_cores.simt_gemm`                exact fp32 GEMMs on the CUDA cores
    `cuda_cores.simt_gemv`                few rows or columns of D of 16-bit operands on the CUDA cores
    `relayout_copy`                       copies of operands that TMA cannot address
    `quantize_groups`                     operands of 8 bits and their scales
    `sum_rows`                            sums of rows by index
    `split_k.add_partials`                reduces the partial sums of split-K
    `split_k.finish_reductions`           finishes the epilogue's reductions

Everything else is a module of its own, in a folder by role; none imports a driver:
    `memory_views` elements at an address, and accesses under a condition
    `host`         arguments of a launch, global tensors, shared-memory layouts, TMA atoms
    `schedule`     tile schedulers (static, stream-K, dynamic, groups), the work tiles they make, dependent launches
    `load`         loads of operands: TMA, cp.async, single elements by threads, rows at any alignment
    `mainloop`     the pipeline of stages, producer, consumers, a CTA's shared memory, its place in a cluster
    `split_k`      reductions over the splits of K
    `epilogue`     subtiles of an accumulator, fused arithmetic, inputs, stores, partial reductions
    `eight_bits`   maxima of elements, their scales, and quotients
    `cuda_cores`   schedule, loads, mainloops and epilogue of the CUDA-core kernels

Legend of tensor names and shape comments:
    m global memory, g a CTA's view of it, s shared memory, r registers (mA, gA, sA, rA)
    tXyA = tensor A in memory y partitioned for X (tCrA: WGMMA's descriptor of A; tAsA: TMA's slice of sA)
    UPPER case extents are compiled in (BLK_M, BLK_N, BLK_K, STAGE, EPI_N); lower case are run-time (m, n, k, l)
    a line of an operand is contiguous in memory: a row along K if the operand is K-major, else the elements of one k
    MMA_COLUMNS are the columns of one wgmma: BLK_N, or half of it (`KernelConfig.mma_columns`)
"""
