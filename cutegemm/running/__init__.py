# SPDX-License-Identifier: Apache-2.0
"""The run path, from a call's arguments to launches: checks, results, backends. Most modules import torch.

`run`           validates and plans a kind of call once and returns a callable; `kind` describes the kind
`grouped_mm`    the same for grouped GEMMs in one launch; `groups` has `Groups`, which gives the group ends
`tangents`      refuses forward-mode differentiation; `recorded`: whether autograd records
`arguments`     names (`named`, `blas`), tensors of other libraries (`arrays`), layouts, types (`describe`), addresses
                (`check`), the key of a kind (`call`), outputs (`results`), packed operands (`pack`)
`backends`      a GPU (`launcher`, `shortcut`, `packed` arguments, `counters`, `properties`, `here`), the emulator
                (`emulated`, `emulator_steps`), torch (`torch_backend`), recipes of an artefact (`replayed`), kernels
                without a plan (`helper_launch`)
`numerics`      fp64 reference (`reference`, `group_reference`), error bounds, calls checked against both (`checked`)
"""
