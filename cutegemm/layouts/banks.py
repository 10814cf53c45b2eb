# SPDX-License-Identifier: Apache-2.0
"""Shared-memory bank conflicts of one warp's access.

The model has 32 banks of 4 bytes; the word at byte address x is in bank (x // 4) % 32. A warp's access of at most 4
bytes per thread is one phase, of 8 bytes two phases (half-warps), of 16 bytes four phases (8 threads each). ldmatrix
and stmatrix have one phase per matrix: its 8 rows of 16 bytes. In each wavefront a bank delivers one word to all
threads that want it. So a phase takes as many wavefronts as the busiest bank has different words. Wavefronts beyond one
per phase are conflicts.

Sources: CUDA C++ Best Practices Guide, "Shared Memory and Memory Banks"; CUDA C++ Programming Guide, "Shared Memory" of
compute capability 5.x and later. The split of wide accesses into phases is what profilers show; NVIDIA does not specify
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cutegemm.arch.sm90 import BANKS, WARP
from cutegemm.layouts.int_tuple import IntTuple, require
from cutegemm.layouts.swizzle import AnyLayout, ComposedLayout

WORD_BYTES = 4  # width of one bank
WIDTHS = (1, 2, 4, 8, 16)  # legal bytes of one thread's load or store
PHASE_BYTES = BANKS * WORD_BYTES  # most bytes of one wavefront


@dataclass(frozen=True)
class BankUsage:
    """The banks that one warp-wide access uses.

    `phases[p][b]` lists the words, numbered from address 0, that phase p accesses in bank b.
    """

    phases: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def wavefronts(self) -> int:
        """Cycles for which the access occupies the banks."""
        return sum(max(map(len, banks)) for banks in self.phases)

    @property
    def conflicts(self) -> int:
        """Wavefronts beyond one per phase."""
        return self.wavefronts - len(self.phases)

    @property
    def ways(self) -> int:
        """Words of the busiest bank in the worst phase; 1 is conflict-free."""
        return max((max(map(len, banks)) for banks in self.phases), default=0)


def access(addresses: Sequence[int | None], width: int) -> BankUsage:
    """Count the bank conflicts of one warp's load or store.

    `addresses[t]` is the byte address of thread t, or None for an inactive thread; `width` is in bytes.

    Raises:
        SpecError: more than 32 threads, an illegal width, or an address that is negative or not aligned to it.

    >>> access([4 * 32 * t for t in range(32)], 4).ways  # a column of a 32-word-wide array
    32
    >>> access([4 * 33 * t for t in range(32)], 4).conflicts  # one word of padding
    0
    >>> access([16 * t for t in range(32)], 16).wavefronts  # 512 bytes, 128 a wavefront
    4
    """
    require(
        width in WIDTHS,
        "width",
        width,
        f"must be one of {', '.join(map(str, WIDTHS))} bytes",
        min(WIDTHS, key=lambda legal: abs(legal - width)),
    )
    require(
        len(addresses) <= WARP,
        "len(addresses)",
        len(addresses),
        f"must be at most {WARP}, one per thread",
        WARP,
    )
    for thread, address in enumerate(addresses):
        require(
            address is None or (address >= 0 and address % width == 0),
            f"addresses[{thread}]",
            address,
            f"must be at least 0 and a multiple of the width of {width} bytes",
            max(0, (address or 0) // width * width),
        )
    threads = min(WARP, PHASE_BYTES // width)
    groups = (addresses[first : first + threads] for first in range(0, len(addresses), threads))
    active = ([a for a in group if a is not None] for group in groups)
    return BankUsage(tuple(_phase(group, width) for group in active if group))


def _phase(addresses: Iterable[int], width: int) -> tuple[tuple[int, ...], ...]:
    """List the different words of each bank."""
    words = {
        word
        for address in addresses
        for word in range(address // WORD_BYTES, (address + width - 1) // WORD_BYTES + 1)
    }
    return tuple(tuple(sorted(word for word in words if word % BANKS == bank)) for bank in range(BANKS))


def matrix_access(row_addresses: Sequence[int]) -> BankUsage:
    """Count the bank conflicts of one ldmatrix or stmatrix: 8, 16 or 32 row addresses in bytes.

    Transposition happens between registers and does not matter here.

    Raises:
        SpecError: another number of rows, or an address that is not aligned to 16 bytes.

    >>> matrix_access([128 * row for row in range(8)]).ways  # 8 rows, one below the other
    8
    """
    require(
        len(row_addresses) in (8, 16, 32),
        "len(row_addresses)",
        len(row_addresses),
        "must be 8, 16 or 32, 8 per matrix",
        min((8, 16, 32), key=lambda legal: abs(legal - len(row_addresses))),
    )
    return access(row_addresses, 16)


def layout_addresses(
    layout: AnyLayout, coordinates: Iterable[IntTuple], bits: int = 16, base: int = 0
) -> list[int]:
    """Turn coordinates of a layout in elements into byte addresses.

    `base` is the byte address of the layout's offset 0. It must be aligned to the period of the layout's swizzle,
    because the hardware swizzles address bits.

    Raises:
        SpecError: an element is not a whole number of bytes, or the base is not aligned.

    >>> from cutegemm.layouts.hardware import smem_atom
    >>> layout_addresses(smem_atom("k", "128B"), [(0, 0), (1, 0), (2, 0)])
    [0, 144, 288]
    """
    require(bits > 0 and bits % 8 == 0, "bits", bits, "must be a multiple of 8", max(8, bits // 8 * 8))
    period = (layout.swizzle.period if isinstance(layout, ComposedLayout) else 1) * bits // 8
    require(
        base >= 0 and base % period == 0,
        "base",
        base,
        f"must be a multiple of the swizzle's period of {period} bytes",
        max(0, round(base / period)) * period,
    )
    return [base + layout(coordinate) * bits // 8 for coordinate in coordinates]
