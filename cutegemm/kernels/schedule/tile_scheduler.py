# SPDX-License-Identifier: Apache-2.0
"""What a CTA does next: the order of output tiles and k tiles, the same for every role of every driver.

A driver's loop has one form, whatever the scheduler:

    state = scheduler.start()
    while scheduler.more(state):
        work = scheduler.work(state)
        ...
        state = scheduler.next(state)

Here cluster c of the grid takes work tiles c, c + clusters, c + 2 clusters, ... of a linear order, rastered in panels
for reuse in L2. Instead of c it may use its place among all clusters in the order of their GPCs (`plans.gpcs`). A
serpentine raster reverses every second panel, and the order of k tiles in every second wave. With as many clusters as
work tiles each has one; with as many as the GPU holds the kernel is persistent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config import KernelConfig
from cutegemm.kernels.mainloop.cluster import Place
from cutegemm.kernels.schedule.work import Work
from cutegemm.launch_layout import ORDERED

State = tuple  # of Int32; drivers carry it through their loops


def cluster_tiles(extent: Any, block: int, cluster: int) -> Any:
    """Tiles of a whole cluster along one axis: ceil(extent / (block * cluster))."""
    return (extent + (block * cluster - 1)) // (block * cluster)


@cute.jit
def tile_of(
    index: Any,
    tiles_m: Any,
    tiles_n: Any,
    group: Any,
    raster: cutlass.Constexpr,
    serpentine: cutlass.Constexpr = False,
) -> Any:
    """(m, n, l) of the index-th cluster tile.

    The raster takes `group` tiles along the raster axis, then steps once along the other, to that axis' end;
    then the next panel, of a serpentine from that end back. The last panel may be narrower.
    """
    per_batch = tiles_m * tiles_n
    batch = index // per_batch
    within = index - batch * per_batch
    along = tiles_m if cutlass.const_expr(raster == "m") else tiles_n
    across = tiles_n if cutlass.const_expr(raster == "m") else tiles_m
    panel = within // (group * across)
    rest = within - panel * (group * across)
    width = cutlass.min(group, along - panel * group)
    step = rest // width
    first = panel * group + rest - step * width
    if cutlass.const_expr(serpentine):
        step = cutlass.select_(panel % 2 == 1, across - 1 - step, step)
    if cutlass.const_expr(raster == "m"):
        return first, step, batch
    return step, first, batch


@cute.jit
def byte_of(words: Any, index: Any) -> Any:
    """The index-th byte of 32-bit numbers, by selections for each bit of the index.

    A kernel's arguments cannot be indexed, and a read of memory would take longer.
    """
    some, place = list(words), index // ORDERED
    while cutlass.const_expr(len(some) > 1):
        upper = place % 2 == 1
        pairs = [some[i : i + 2] for i in range(0, len(some), 2)]
        some = [cutlass.select_(upper, x[1], x[0]) if len(x) == 2 else x[0] for x in pairs]
        place = place // 2
    return (some[0] >> (index % ORDERED * 8)) & 0xFF


@dataclass(frozen=True)
class Extent:
    """The output of a launch as its epilogue sees it.

    Attributes:
        m, n, l: of the output.
        tiles_n: CTA tiles along N, those that fill up clusters included.
        partials: partial results per result of a reduction over rows, over columns and over all.
    """

    m: Any
    n: Any
    l: Any  # noqa: E741 (the batch axis' name in every shape comment)
    tiles_n: Any
    partials: tuple[Any, Any, Any]


@dataclass(frozen=True)
class TileScheduler:
    """The work tiles of one CTA. A state is (index of the cluster's work tile,)."""

    config: KernelConfig
    place: Place
    cluster: Any  # which of the grid
    shape: dict[str, Any]  # the launch's group "shape"
    tiles: tuple[Any, Any, Any]  # (m, n, l) of a whole cluster
    k_tiles: Any
    group: Any  # clusters of a panel along the raster axis
    clusters: Any  # of the grid
    launched: dict[str, Any]  # the launch's group "schedule"

    @classmethod
    def create(
        cls, config: KernelConfig, place: Place, shape: dict[str, Any], schedule: dict[str, Any]
    ) -> TileScheduler:
        """The tile scheduler of the executing CTA, from the launch's groups "shape" and "schedule"."""
        cluster_m, cluster_n = config.cluster
        tiles = (
            cluster_tiles(shape["m"], config.rows, cluster_m),
            cluster_tiles(shape["n"], config.columns, cluster_n),
            shape["l"],
        )
        k_tiles = cluster_tiles(shape["k"], config.tile[2], 1)
        block, _, _ = cute.arch.block_idx()
        cluster = block // config.cluster_size
        if cutlass.const_expr("order" in schedule):
            cluster = byte_of(schedule["order"], cluster)
        return cls(
            config, place, cluster, shape, tiles, k_tiles, schedule["group"], schedule["clusters"], schedule
        )

    def output(self, shape: dict[str, Any], schedule: dict[str, Any]) -> Extent:
        """The output of the launch."""
        tiles_n = self.tiles[1] * (self.config.cluster[1] * self.config.slices)
        partials = (schedule["partials.m"], schedule["partials.n"], schedule["partials.all"])
        return Extent(shape["m"], shape["n"], shape["l"], tiles_n, partials)

    def placed(self, addresses: dict[str, Any], shared: Any) -> TileScheduler:
        """The scheduler with what it needs of shared memory, and of global memory (`SCHEDULER_READS`): nothing."""
        return self

    def end_rows(self, state: State, epilogue: Any, thread: Any, threads: Any) -> None:
        """After the consumers' last work tile: what they do about rows of D that no work tile covers."""

    def init(self) -> None:
        """Initialise its barriers; from one thread."""

    def lead(self, thread: Any) -> None:
        """The producer begins, before `start`."""

    def ready(self, work: Work, k: Any, thread: Any) -> None:
        """The producer is about to issue the loads of a work tile's k-th k tile."""

    def loaded(self, state: State, work: Work, k: Any, thread: Any) -> None:
        """The producer has issued the loads of the k-th k tile of a state's work tile."""

    def end(self, state: State, thread: Any) -> None:
        """The producer ends; `state` is the one after its last work tile."""

    def stages_before(self, first: Any) -> Any:
        """K tiles of the CTA's work tiles before the one that comes `first` later: other consumers' stages."""
        return first * self.k_tiles

    def stages_between(self, state: State) -> Any:
        """K tiles of the work tile after a state's: consumers that take turns are two."""
        return self.k_tiles

    def before(self) -> State:
        """The state before any work tile."""
        return (cutlass.Int32(-1),)

    def at(self, index: Any, state: State, first: bool) -> State:
        """The state of the index-th work tile of all clusters.

        Args:
            state: of an earlier work tile of this CTA, or `before` any.
            first: whether it is the CTA's first work tile.
        """
        return (index,)

    def start(self, skip: Any = 0) -> State:
        """The state of the CTA's first work tile, or of the one `skip` work tiles later."""
        return self.at(self.cluster + skip * self.clusters, self.before(), True)

    def next(self, state: State, count: int = 1) -> State:
        """The state `count` work tiles later."""
        return self.at(state[0] + self.clusters * count, state, False)

    def peek_first(self) -> State:
        """The state of the CTA's first work tile, for a consumer whose own comes later."""
        return self.start()

    def peek_next(self, state: State) -> State:
        """The state of the work tile after a state's, for a consumer whose own comes later."""
        return self.next(state)

    def more(self, state: State) -> Any:
        """Whether there is a work tile to do."""
        return state[0] < self.works

    @property
    def works(self) -> Any:
        """How many work tiles the launch has."""
        return self.tiles[0] * self.tiles[1] * (self.tiles[2] * self._splits)

    @property
    def _splits(self) -> int:
        """Work tiles of one cluster tile: its splits over several clusters."""
        return self.config.outer_splits

    def _split(self, state: State) -> tuple[Any, Any]:
        """(number of a state's cluster tile, which of its splits).

        Splits of a tile follow one another, or tiles of a split if those of a GPC are to share operands.
        """
        if self.config.by_gpc:
            tiles = self.tiles[0] * self.tiles[1] * self.tiles[2]
            split = state[0] // tiles
            return state[0] - split * tiles, split
        index = state[0] // self._splits
        return index, state[0] - index * self._splits

    def share(
        self, tile: tuple[Any, Any, Any], first: Any, k_tiles: Any, split: Any, splits: Any, step: Any = 1
    ) -> Work:
        """The work tile of a CTA tile (m, n, l), of a launch that computes one GEMM."""
        return Work(*tile, first, k_tiles, split, splits, (self.shape["m"], self.shape["n"]), step)

    @property
    def no_numbers(self) -> tuple:
        """As many zeros as `numbers` are, and one more."""
        return (cutlass.Int32(0),) * (6 if self.config.grouped else 5)

    def own(self, m: Any, n: Any, batch: Any) -> tuple[Any, Any, Any]:
        """(m, n, l) of this CTA's tile of a cluster tile."""
        cluster_m, cluster_n = self.config.cluster
        return m * cluster_m + self.place.m, n * cluster_n + self.place.n, batch

    def numbers(self, work: Work) -> tuple:
        """What a work tile's loads depend on, in numbers that a loop carries."""
        return work.m, work.n, work.l, work.first

    def of_numbers(self, numbers: tuple) -> Work:
        """The work tile of `numbers`, right in the fields that its loads read."""
        *tile, first = numbers
        return self.share((tile[0], tile[1], tile[2]), first, 0, 0, 1)

    def number(self, work: Work) -> Any:
        """The number of a work tile's CTA tile among all of the launch."""
        cluster_m, cluster_n = self.config.cluster
        row = work.l * (self.tiles[0] * cluster_m) + work.m
        return row * (self.tiles[1] * cluster_n) + work.n

    def slot(self, work: Work, split: Any) -> Any:
        """Where a split of a work tile's tile of D lies in workspace."""
        return self.number(work) * self.config.kept_splits + split

    def follows(self, state: State) -> Any:
        """Whether there is a work tile after a state's."""
        return self.more(self.peek_next(state))

    def work(self, state: State) -> Work:
        """The work tile of a state."""
        config = self.config
        index, split = self._split(state)
        m, n, batch = tile_of(
            index, self.tiles[0], self.tiles[1], self.group, config.raster, config.serpentine
        )
        tile = self.own(m, n, batch)
        if config.serpentine:
            # the same direction for all tiles of a wave: what the wave before it loaded last is still in L2
            back = state[0] // self.clusters % 2
            last = back * (self.k_tiles - 1)
            return self.share(tile, last, self.k_tiles, cutlass.Int32(0), 1, 1 - 2 * back)
        if config.splits == 1:
            return self.share(tile, cutlass.Int32(0), self.k_tiles, cutlass.Int32(0), 1)
        # splits that a cluster reduces lie side by side
        split = split * config.cluster_splits + self.place.split
        first = split * self.k_tiles // config.splits
        k_tiles = (split + 1) * self.k_tiles // config.splits - first
        return self.share(tile, first, k_tiles, split, config.splits)
