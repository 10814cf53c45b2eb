# SPDX-License-Identifier: Apache-2.0
"""From a config to a compiled kernel, cached on disk and loaded. Needs no GPU.

one kernel        `compiler`, `resources` (registers, spills, SASS), `loader` (launches the kernel, or records launches)
cached on disk    `kernel_cache`, `sealed_files`, `sources` (source files in a key), `folders` (cache directories),
                  `archive` (list, clear, export, import)
the DSL's MLIR    `ir`
several kernels   `jobs`, `job`, `progress`
"""
