# SPDX-License-Identifier: Apache-2.0
"""From a call's arguments to launches: checks, results, backends. Imports torch, but for what is imported with
`cutegemm` itself.

a call's arguments              `named`, `blas` (those of the plain epilogue), `arrays` (of other libraries)
what tells kinds of calls apart `call`
a kind, validated and planned   `run`, `describe` (layouts and types), `check` (addresses), `kind`, `results`
what serves it                  `launcher` (the GPU; `shortcut`, `packed` arguments), `emulated`,
                                `torch_backend` with `reference`; `replayed` (recipes of an artefact);
                                `steps` (launches for the emulator, without torch)
compared with fp64              `checked`, `bounds`
the GPU at hand                 `here`, `properties`; who owns what launches count with `counters`
operands laid out in advance    `pack`
groups of rows in one launch    `grouped_mm`
"""
