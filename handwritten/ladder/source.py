# SPDX-License-Identifier: Apache-2.0
"""The `.cu` files as text: their folder, tile constants, and the `Measured` line of their headers."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent
DIGEST_LENGTH = 16  # hex digits

# a tile constant of a .cu file, or the default of one that a -D overrides
_CONSTANT = re.compile(r"^(?:constexpr int (\w+) = ([^;]+);|#define ([A-Z]\w*) (\d+)$)", re.MULTILINE)
_MEASURED = re.compile(r"^// Measured  .*$", re.MULTILINE)


def read_constants(text: str, given: dict[str, int]) -> dict[str, int]:
    """Evaluate a source's `constexpr int` lines and macro defaults; `given` overrides the latter."""
    found = dict(given)
    for name, expression, macro, default in _CONSTANT.findall(text):
        if macro:
            found.setdefault(macro, int(default))
        else:
            # integer arithmetic with earlier names; C's / on positive ints is Python's //
            found[name] = int(eval(expression.replace("/", "//"), {"__builtins__": {}}, found))
    return found


def with_measured(text: str, measured: str) -> str:
    """Replace the `Measured` line of a stage's header."""
    return _MEASURED.sub(lambda _: f"// Measured  {measured}", text, count=1)


def source_digest(folder: Path = FOLDER) -> str:
    """Return a digest of the stages' sources without the figures in their headers, as an identity for results."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.cu"), *folder.glob("*.cuh")]):
        digest.update(f"{path.name}\n{with_measured(path.read_text('utf-8'), '')}".encode())
    return digest.hexdigest()[:DIGEST_LENGTH]
