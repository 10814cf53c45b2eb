# SPDX-License-Identifier: Apache-2.0
"""The families of kernels, one row each."""

from cutegemm.families.abilities import THREAD_LOADS, Abilities
from cutegemm.families.family import Family, Roles

# A producer warpgroup loads for consumer warpgroups, which share tiles ("cooperative") or alternate ("pingpong").
WARP_SPECIALIZED = Family(
    name="warp_specialized",
    config="cutegemm.config:KernelConfig",
    driver="cutegemm.kernels.warp_specialized:WarpSpecializedGemm",
    plan="cutegemm.planning.choose:plan_tensor_core",
    weigh="cutegemm.planning.why:weigh_tensor_core",
    beside="cutegemm.gemm.other_types:faster_in_bf16",
    abilities={
        "cooperative": Abilities(
            loads=("tma", *THREAD_LOADS),
            stores=("tma", "staged", "direct"),
            schedulers=("persistent", "per_tile", "stream_k", "dynamic"),
            reductions=("none", "cluster", "workspace", "launch", "atomic"),
            consumers=(1, 2, 3),
            multicast=True,
        ),
        "pingpong": Abilities(
            loads=("tma", *THREAD_LOADS),
            stores=("tma", "staged", "direct"),
            schedulers=("persistent", "dynamic"),
            consumers=(2,),
            multicast=True,
        ),
    },
    limits=Roles(
        producers=1,
        accumulators={1: 144, 2: 192, 3: 128},
        laden={1: 144, 2: 128, 3: 96},
        turns={False: 192, True: 128},
        # 208 columns per pingpong consumer do not spill; 224 do
        plain_accumulators=208,
        plain_registers=(24, 240),
        # a producer that loads by threads needs 96 registers for its loads in flight
        shared_accumulators={1: 96, 2: 48},
        shared_registers={1: (40, 216), 2: (24, 104)},
        registers={False: {2: (40, 232), 3: (32, 160)}, True: {2: (96, 200), 3: (96, 136)}},
    ),
)

# No warp specialization: every warpgroup computes, one thread also loads.
MULTISTAGE = Family(
    name="multistage",
    config="cutegemm.config:KernelConfig",
    driver="cutegemm.kernels.multistage:MultistageGemm",
    plan="cutegemm.planning.choose:plan_tensor_core",
    weigh="cutegemm.planning.why:weigh_tensor_core",
    beside="cutegemm.gemm.other_types:faster_in_bf16",
    abilities={
        "multistage": Abilities(
            loads=("tma",),
            stores=("tma", "staged", "direct"),
            schedulers=("persistent", "per_tile"),
            consumers=(1, 2, 3),
        )
    },
    limits=Roles(producers=0, accumulators={1: 160, 2: 160, 3: 128}, shared_accumulators={1: 160, 2: 64}),
)

# Exact fp32 on CUDA cores, any strides; also the epilogue alone if K is 0.
SIMT = Family(
    name="simt",
    config="cutegemm.config:SimtConfig",
    driver="cutegemm.kernels.cuda_cores.simt_gemm:SimtGemm",
    plan="cutegemm.planning.simt_tiles:plan_simt",
    weigh="cutegemm.planning.why:weigh_simt",
    abilities={
        "simt": Abilities(
            loads=("direct",), stores=("direct",), schedulers=("per_tile",), reductions=("none", "cluster")
        )
    },
)

# A few rows of 16-bit elements times a matrix that is contiguous along K, on CUDA cores.
GEMV = Family(
    name="gemv",
    config="cutegemm.config:GemvConfig",
    driver="cutegemm.kernels.cuda_cores.simt_gemv:Gemv",
    weigh="cutegemm.planning.why:weigh_simt",
    abilities={"gemv": Abilities(loads=("direct",), stores=("direct",), schedulers=("per_tile",))},
)

# Copies a matrix into workspace with a layout that TMA can address.
RELAYOUT = Family(
    name="relayout",
    config="cutegemm.config:RelayoutConfig",
    driver="cutegemm.kernels.relayout_copy:Relayout",
    abilities={"relayout": Abilities()},
)

# Reduces the partial results of an epilogue's reduction in a fixed order.
FINISH = Family(
    name="finish",
    config="cutegemm.config:FinishConfig",
    driver="cutegemm.kernels.split_k.finish_reductions:Finish",
    abilities={"finish": Abilities()},
)

# Quantizes an operand to 8 bits and computes its scales.
QUANTIZE = Family(
    name="quantize",
    config="cutegemm.config:QuantizeConfig",
    driver="cutegemm.kernels.quantize_groups:QuantizeGroups",
    abilities={"quantize": Abilities()},
)

# Sums rows of a matrix by index.
ROW_SUM = Family(
    name="row_sum",
    config="cutegemm.config:RowSumConfig",
    driver="cutegemm.kernels.sum_rows:SumRows",
    abilities={"row_sum": Abilities()},
)

# Reduces the splits that the previous launch stored in workspace, and applies the epilogue.
ADD_PARTIALS = Family(
    name="add_partials",
    config="cutegemm.config:KernelConfig",
    driver="cutegemm.kernels.split_k.add_partials:AddPartials",
    abilities={
        "add_partials": Abilities(
            stores=("tma", "staged", "direct"),
            schedulers=("per_tile",),
            reductions=("launch",),
            consumers=(1, 2, 3),
        )
    },
    limits=Roles(producers=0, accumulators={1: 32, 2: 32, 3: 32}, multiplies=False),
)

_ROWS = (WARP_SPECIALIZED, MULTISTAGE, SIMT, GEMV, RELAYOUT, FINISH, QUANTIZE, ROW_SUM, ADD_PARTIALS)
FAMILIES: dict[str, Family] = {x.name: x for x in _ROWS}
