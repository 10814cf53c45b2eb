# SPDX-License-Identifier: Apache-2.0
"""The epilogue's matrix inputs by TMA: pieces that arrive in shared memory while the mainloop runs.

Each consumer warpgroup fetches its own pieces: its first warp issues the first INPUT_STAGES of a tile before
the tile's mainloop, and each later one when the piece INPUT_STAGES before it has been read. INPUT_STAGES
divides a tile's pieces, so a piece has the same buffer in every tile.

Barriers: per warpgroup and buffer one mbarrier; the elected thread's arrival with the byte count of all
matrices -> the warpgroup waits. A buffer is refilled after a barrier of the warpgroup that follows its reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig, MatrixConfig
from cutegemm.kernels import operands as ops
from cutegemm.kernels.pieces import Piece, Role, from_shared
from cutegemm.kernels.shared import Shared


@dataclass(frozen=True)
class PieceLoad:
    """One matrix: its TMA atom, partitions and buffers."""

    matrix: MatrixConfig
    atom: Any
    tXgX: Any  # (TMA) coordinates of the matrix' first piece
    coords: Any  # (m, n, l)
    tXsX: Any  # (TMA, CONSUMERS * INPUT_STAGE)
    sX: Any  # (WGMMA_M, EPI_N, CONSUMERS * INPUT_STAGE)
    batches: Any  # extent of its batch mode: 1 is broadcast


@dataclass(frozen=True)
class PieceLoads:
    """Every matrix input that TMA fetches, and their barriers."""

    config: KernelConfig
    loads: dict[str, PieceLoad]
    shared: Shared
    full: Any  # CONSUMERS * INPUT_STAGE mbarriers

    @staticmethod
    def create(
        config: KernelConfig, fetched: dict[str, tuple[Any, Any]], shared: Shared
    ) -> PieceLoads | None:
        """Allocate buffers, in the graph's order, and partition; None if TMA fetches no matrix.

        Args:
            fetched: (atom, coordinates) of the matrices that TMA fetches, from `operands.load_atom`; (m, n, l).
            shared: the kernel's shared memory.
        """
        loads = {}
        for name, (atom, coords) in fetched.items():
            matrix = config.input_of[name]
            layout = ops.piece_layout(config, matrix, config.input_stages)
            sX = shared.tensor(f"{name} pieces", ops.NUMERIC[matrix.dtype], layout)
            gX = cute.local_tile(coords, (hw.WGMMA_M, config.epi_n), (0, 0, 0))
            tXsX, tXgX = cpasync.tma_partition(
                atom, 0, cute.make_layout(1), cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2)
            )
            loads[name] = PieceLoad(matrix, atom, tXgX, coords, tXsX, sX, cute.size(coords, mode=[2]))
        if not loads:
            return None
        return PieceLoads(config, loads, shared, shared.barriers("pieces"))

    def init(self) -> None:
        """Initialise the barriers; from one thread."""
        for buffer in range(self.config.consumers * self.config.input_stages):
            self.shared.init("pieces", self.full + buffer)

    def _buffer(self, role: Role, number: int) -> Any:
        stages = self.config.input_stages
        return role.slot * stages + number % stages

    @cute.jit
    def fetch(self, role: cutlass.Constexpr, piece: cutlass.Constexpr) -> None:
        """Issue the copies of one piece of every matrix, from the warpgroup's first warp."""
        buffer = self._buffer(role, piece.number)
        if role.thread // hw.WARP == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(self.full + buffer, self.piece_bytes)
            for load in self.loads.values():
                batch = cutlass.min(piece.batch, load.batches - 1)
                source = ops.moved(load.tXgX, load.coords, (*piece.origin, batch))
                cute.copy(load.atom, source, load.tXsX[None, buffer], tma_bar_ptr=self.full + buffer)

    @property
    def piece_bytes(self) -> int:
        """Bytes of one piece of every matrix."""
        return sum(hw.WGMMA_M * self.config.epi_n * x.matrix.dtype.bytes for x in self.loads.values())

    def read(self, piece: Piece, phase: Any) -> dict[str, list[Any]]:
        """Wait for a piece and read it: name -> fp32 elements in accumulator order.

        Args:
            phase: the parity of the tile's first INPUT_STAGES pieces.
        """
        buffer = self._buffer(piece.role, piece.number)
        cute.arch.mbarrier_wait(self.full + buffer, phase ^ (piece.number // self.config.input_stages & 1))
        found = {}
        for name, load in self.loads.items():
            copy = from_shared(self.config, load.matrix.dtype, load.matrix.major)
            part = copy.get_slice(piece.role.thread)
            tXsX = part.partition_S(load.sX)  # (COPY, 1, COPY_N, CONSUMERS * INPUT_STAGE)
            rX = cute.make_rmem_tensor(piece.size, ops.NUMERIC[load.matrix.dtype])
            # what a thread gets, which of an ldmatrix of two matrices is half of what it addresses
            shape = cute.shape(part.partition_D(load.sX))[:3]
            target = cute.make_tensor(rX.iterator, cute.make_layout(shape))
            cute.copy(copy, tXsX[None, None, None, buffer], target)
            values = rX.load().to(cutlass.Float32)
            found[name] = [values[v] for v in range(piece.size)]
        return found

    def turn(self, phase: Any) -> Any:
        """The parity for the tile after one."""
        return phase ^ (self.config.pieces // self.config.input_stages & 1)
