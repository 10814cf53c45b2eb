# SPDX-License-Identifier: Apache-2.0
"""What the commands show, computed and as data: nothing here prints.

explained   all that `explain` shows, from the parts below
occupancy   CTAs on an SM, and waves of tiles
traffic     bytes, instructions and FLOP of a launch
roofline    what its work takes of each resource, and what bounds it
raster      the order of tiles, and what a wave shares in L2
timeline    what each role of a CTA does when
drawing     a layout's table, its bank conflicts, who holds what of an instruction
machine_code  PTX and SASS, counted, and compared so that only real changes show
difference  two specs side by side; comparison: contenders on the GPU, and tuning
emulation   a kernel on the emulator; emulated_arrays: drawn operands without torch
health      what `doctor` looks at
"""
