# SPDX-License-Identifier: Apache-2.0
"""The results of the commands as data; nothing here prints.

explained        everything that `explain` shows, from the modules below
occupancy        CTAs on an SM, and waves of tiles
traffic          bytes, instructions and FLOP of a launch
roofline         the time on each resource, and the bound
raster           the order of tiles, and the L2 reuse of a wave
timeline         when each role of a CTA works
drawing          the table of a layout or a fragment, and bank conflicts
machine_code     PTX and SASS, counted, and compared so that only real changes show
difference       two specs compared
comparison       contenders timed on the GPU, and tuning
emulation        a kernel on the emulator
emulated_arrays  random operands without torch
health           the checks of `doctor`
"""
