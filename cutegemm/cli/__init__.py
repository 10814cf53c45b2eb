# SPDX-License-Identifier: Apache-2.0
"""The command line, `cutegemm` or `python -m cutegemm` (docs/cli.md).

app         all commands; the process that runs one
group       a group of commands, exit codes and errors
inputs      the arguments of commands: spec, problem, epilogue, GPU
output      JSON or text, at the terminal's width or 80 columns
schema      the JSON schema of a command's --json
gpus        the driver and GPUs of this machine

Each command has a file: `explain`, `diff`, `code` (ptx and sass), `layout`, `doctor`, `bench` (and tune), `ladder`,
`emulate`, `cache`, `database`. They compute with `facts` and print; `page` makes the HTML page of `explain`. Modules
are imported when a command runs, so `cutegemm layout` loads neither NumPy nor torch.
"""
