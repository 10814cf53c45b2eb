# SPDX-License-Identifier: Apache-2.0
"""Constants, figures of the header, and the digest, as read from the text of a `.cu` file."""

from pathlib import Path

from handwritten.ladder.source import read_constants, source_digest


def test_constants_come_from_the_source() -> None:
    """Tile constants are read off the source in order, and a -D overrides a #define's default."""
    source = "#define N 64\nconstexpr int BM = 128;\nconstexpr int HALF_BM = BM / 2 + N;\n"
    assert read_constants(source, {}) == {"N": 64, "BM": 128, "HALF_BM": 128}
    assert read_constants(source, {"N": 8})["HALF_BM"] == 72


def test_figures_in_a_header_do_not_change_the_sources(tmp_path: Path) -> None:
    """Writing what was measured into a header leaves the digest that the figures belong to; code changes it."""
    path = tmp_path / "01_naive.cu"
    digests = []
    for text in ("// Measured  old\nint x;\n", "// Measured  new\nint x;\n", "// Measured  new\nint y;\n"):
        path.write_text(text)
        digests.append(source_digest(tmp_path))
    assert digests[0] == digests[1] != digests[2]
