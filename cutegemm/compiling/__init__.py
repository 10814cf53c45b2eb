# SPDX-License-Identifier: Apache-2.0
"""From a config to a compiled kernel, kept on disk and loaded. Needs no GPU.

one kernel                      `compiler`, `resources` (what it uses), `loader` (launched, or recorded)
kept on disk                    `kernel_cache`, `sealed_files`, `sources` (what a key covers),
                                `folders` (where files lie), `archive` (all of them: listed, cleared, in one file)
as the DSL traces it             `ir`
several at once                 `jobs`, `job`, `progress`
"""
