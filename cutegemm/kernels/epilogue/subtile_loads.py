# SPDX-License-Identifier: Apache-2.0
"""The epilogue's matrix inputs by TMA: subtiles that arrive in shared memory while the mainloop runs.

Each consumer warpgroup fetches its own subtiles: its first warp issues the first INPUT_STAGES of a tile before
the tile's mainloop, and each later one when the subtile INPUT_STAGES before it has been read. INPUT_STAGES
divides a tile's subtiles, so a subtile has the same buffer in every tile.

Barriers: per warpgroup and buffer one mbarrier; the elected thread's arrival with the byte count of all
matrices -> the warpgroup waits. A buffer is refilled after a barrier of the warpgroup that follows its reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig, MatrixConfig
from cutegemm.kernels.epilogue.subtiles import Role, Subtile, from_shared
from cutegemm.kernels.host import operand_layouts as ops
from cutegemm.kernels.mainloop.shared_storage import Shared


@dataclass(frozen=True)
class SubtileLoad:
    """One matrix: its TMA atom, partitions and buffers."""

    matrix: MatrixConfig
    atom: Any
    tXgX: Any  # (TMA) coordinates of the matrix' first subtile
    coords: Any  # (m, n, l)
    tXsX: Any  # (TMA, CONSUMERS * INPUT_STAGE)
    sX: Any  # (WGMMA_M, EPI_N, CONSUMERS * INPUT_STAGE)
    batches: Any  # extent of its batch mode: 1 is broadcast


@dataclass(frozen=True)
class SubtileLoads:
    """Every matrix input that TMA fetches, and their barriers."""

    config: KernelConfig
    loads: dict[str, SubtileLoad]
    shared: Shared
    full: Any  # CONSUMERS * INPUT_STAGE mbarriers

    @staticmethod
    def create(
        config: KernelConfig, fetched: dict[str, tuple[Any, Any]], shared: Shared
    ) -> SubtileLoads | None:
        """Allocate buffers, in the graph's order, and partition; None if TMA fetches no matrix.

        Args:
            fetched: (atom, coordinates) of the matrices that TMA fetches, from `operand_layouts.load_atom`; (m, n, l).
            shared: the kernel's shared memory.
        """
        loads = {}
        for name, (atom, coords) in fetched.items():
            matrix = config.input_of[name]
            layout = ops.subtile_layout(config, matrix, config.input_stages)
            sX = shared.tensor(f"{name} subtiles", ops.NUMERIC[matrix.dtype], layout)
            gX = cute.local_tile(coords, (hw.WGMMA_M, config.epi_n), (0, 0, 0))
            tXsX, tXgX = ops.partition(atom, sX, gX)
            loads[name] = SubtileLoad(matrix, atom, tXgX, coords, tXsX, sX, cute.size(coords, mode=[2]))
        if not loads:
            return None
        return SubtileLoads(config, loads, shared, shared.barriers("subtiles"))

    def init(self) -> None:
        """Initialise the barriers; from one thread."""
        for buffer in range(self.config.consumers * self.config.input_stages):
            self.shared.init("subtiles", self.full + buffer)

    def _buffer(self, role: Role, number: int) -> Any:
        stages = self.config.input_stages
        return role.slot * stages + number % stages

    @cute.jit
    def fetch(self, role: cutlass.Constexpr, subtile: cutlass.Constexpr) -> None:
        """Issue the copies of one subtile of every matrix, from the warpgroup's first warp."""
        buffer = self._buffer(role, subtile.number)
        if role.thread // hw.WARP == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(self.full + buffer, self.subtile_bytes)
            for load in self.loads.values():
                batch = cutlass.min(subtile.batch, load.batches - 1)
                source = ops.moved(load.tXgX, load.coords, (*subtile.origin, batch))
                cute.copy(load.atom, source, load.tXsX[None, buffer], tma_bar_ptr=self.full + buffer)

    @property
    def subtile_bytes(self) -> int:
        """Bytes of one subtile of every matrix."""
        return sum(hw.WGMMA_M * self.config.epi_n * x.matrix.dtype.bytes for x in self.loads.values())

    def read(self, subtile: Subtile, phase: Any) -> dict[str, list[Any]]:
        """Wait for a subtile and read it: name -> fp32 elements in accumulator order.

        Args:
            phase: the parity of the tile's first INPUT_STAGES subtiles.
        """
        buffer = self._buffer(subtile.role, subtile.number)
        cute.arch.mbarrier_wait(self.full + buffer, phase ^ (subtile.number // self.config.input_stages & 1))
        found = {}
        for name, load in self.loads.items():
            copy = from_shared(self.config, load.matrix.dtype, load.matrix.major)
            part = copy.get_slice(subtile.role.thread)
            tXsX = part.partition_S(load.sX)  # (COPY, 1, COPY_N, CONSUMERS * INPUT_STAGE)
            rX = cute.make_rmem_tensor(subtile.size, ops.NUMERIC[load.matrix.dtype])
            # what a thread receives: with ldmatrix.x2 half of what it addresses
            shape = cute.shape(part.partition_D(load.sX))[:3]
            target = cute.make_tensor(rX.iterator, cute.make_layout(shape))
            cute.copy(copy, tXsX[None, None, None, buffer], target)
            values = rX.load().to(cutlass.Float32)
            found[name] = [values[v] for v in range(subtile.size)]
        return found

    def following(self, phase: Any) -> Any:
        """The parity for the next tile."""
        return phase ^ (self.config.subtiles // self.config.input_stages & 1)
