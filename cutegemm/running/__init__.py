# SPDX-License-Identifier: Apache-2.0
"""From a call's arguments to launches: checks, results, backends. Most of it imports torch.

`run`           a kind of call is validated and planned once and becomes a callable; `kind` describes it
`grouped_mm`    the same for groups of GEMMs in one launch; `groups` has `Groups`, which tells where they lie
`arguments`     names (`named`, `blas`), tensors of other libraries (`arrays`), layouts, types (`describe`), addresses
                (`check`), the key of a kind (`call`), outputs (`results`), operands laid out in advance (`pack`)
`backends`      a GPU (`launcher`, `shortcut`, `packed` arguments, `counters`, `properties`, `here`), the emulator
                (`emulated`, `emulator_steps`), torch (`torch_backend`), recipes of an artefact (`replayed`)
`numerics`      the fp64 reference (`reference`, `group_reference`), error bounds, calls compared with them (`checked`)
"""
