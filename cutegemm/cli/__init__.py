# SPDX-License-Identifier: Apache-2.0
"""The command line, `cutegemm` or `python -m cutegemm` (docs/cli.md).

app         the commands, exit codes and errors
given       what the commands take: spec, problem, epilogue, GPU
output      JSON or text, at the terminal's width or 80 columns
schema      the JSON schema of a command's --json
gpus        the driver and GPUs of this machine

A file for each command: `explain`, `diff`, `code` (ptx and sass), `layout`, `doctor`, `bench`, `tune`, `ladder`,
`emulate`, `cache`, `database`. They compute with `facts` and print; `page` makes the HTML page of `explain`.
Commands import what they use when they run, so that `cutegemm layout` loads neither NumPy nor torch.
"""
