# SPDX-License-Identifier: Apache-2.0
"""The kernels, in the CuTe DSL for sm_90a. Importing a module of this package imports the DSL.

A driver per family: `warp_specialized`, `multistage`, `simt`, `add_parts`, `relayout`, `finish`. A driver
shows set-up, role dispatch and the tile loop; everything else is a module of its own, none of which imports a driver:
    a launch's arguments            `launch`, `tensors`, `operands`
    a CTA's set-up                  `frame`, `cluster`, `dependence`, shared memory by name `shared`
    what to do next                 `work`, and the tile schedulers that make works: `scheduler`, `stream` (stream-K),
                                    `dynamic`, `groups` (several GEMMs in one launch)
    loads and the mainloop          `producer`, `ring`, `loads`, `tma_load`, `hints`, `mainloop`, `turns`; rows that
                                    no load writes `rest`
    loads by threads                `lines`, `words`, `gather`, `async_load`, `shift_load`, whose
                                    words TMA brings `box_load`, the shift itself `shifting`
    adding up parts of K            `cluster_sum`, `workspace_sum`, `atomic_sum`, `left_sum`, two levels of them
                                    `nested_sum`; where parts lie `sum_parts`; by a launch of its own `add_parts`
    counting                        `counters`
    the epilogue, piece by piece    `epilogue`, `pieces`, `piece_loads`, `vectors`, `fusion`, `functions`, `store`,
                                    of lines at any address `line_store`, `reduce`
    on the CUDA cores               `simt_walk`, `simt_operand`, `simt_ring` with `simt_tile`, `simt_staged`
                                    with `simt_runs`, `simt_sums`, `simt_epilogue`

Legend of tensor names and shape comments:
    m global memory, g a CTA's view of it, s shared memory, r registers (mA, gA, sA, rA)
    tXyA = tensor A in memory y partitioned for X (tCrA: WGMMA's descriptor of A; tAsA: TMA's slice of sA)
    UPPER case extents are compiled in (BLK_M, BLK_N, BLK_K, STAGE, EPI_N); lower case are run-time (m, n, k, l)
"""
