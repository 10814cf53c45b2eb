# SPDX-License-Identifier: Apache-2.0
"""A plan as data: the launches of a problem and their arguments, and what is known of them beforehand.

How a kernel is chosen is `planning`'s.

`kernel_plan`     `KernelPlan`, the candidates that it was chosen from (`Why`), and the arguments of its launches
`steps`           the launches, a `Step` each
`group_sizes`     groups whose sizes the host does not know: their most work tiles, a launch for small and one for large
`group_tiles`     how many tiles groups of random sizes have
`launches`        a kernel's grid, and the launch that reduces its splits
`subtiles`        of an epilogue
`gpcs`            which clusters run in one GPC, and in which order they take work tiles
`launch_limits`   what a grid, a tile scheduler and a copy can count
`workspace`       where a launch's partial sums, counters and partial results lie in device memory
`plan_text`       a plan in words
"""
