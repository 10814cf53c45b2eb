# SPDX-License-Identifier: Apache-2.0
"""The command line is checked before anything runs, and a refusal names argument, value and rule."""

import importlib.util

import pytest

from handwritten.ladder import options


@pytest.mark.parametrize("text, expected", [("4096", (4096,) * 3), ("128x64x32", (128, 64, 32))])
def test_extents(text: str, expected: tuple[int, int, int]) -> None:
    """One number is a cube, three are M, N and K."""
    assert options.extents(text) == expected


def test_defaults() -> None:
    """Without arguments every stage is measured at 4096 cubed in fp32 and bf16."""
    found = options.parse([])
    assert (found.sizes, found.dtypes, found.beta, found.rounds) == (((4096,) * 3,), ("fp32", "bf16"), 0.0, 7)
    assert len(found.stages) == 25 and found.builder and found.json is None


def test_stages_by_number_name_and_key() -> None:
    """Labels of any kind choose stages in the ladder's order, once each; a number means all variants of its file."""
    found = options.parse(["--stages", "17,smem_tile,03_smem_tile,02"])
    keys = [stage.key for stage in found.stages]
    assert keys == ["02_coalesced", "03_smem_tile", *(f"17_wgmma_shapes_n{n}" for n in (32, 64, 128, 256))]


def test_help_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No line of `--help` is wider than a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        options.parse(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0 and "--emulate" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--stages 99",
            "argument --stages: '99': must be the number, name or key of one of 01_naive, 02_coal",
        ),
        ("--stages 1,", "argument --stages: '1,': must be values separated by single commas"),
        ("--sizes abc", "argument --sizes: 'abc': must be M=N=K or MxNxK, as in 4096 or 128x128x16384"),
        ("--sizes 64x64", "argument --sizes: '64x64': must be M=N=K or MxNxK"),
        ("--sizes 0", "argument --sizes: '0': extents must be from 1 to 2147483647; nearest legal value: 1"),
        ("--sizes 64,9999999999", "extents must be from 1 to 2147483647; nearest legal value: 2147483647"),
        ("--sizes -5", "argument --sizes: '-5': must be M=N=K or MxNxK"),
        ("--rounds 0", "argument --rounds: '0': must be a whole number from 1; nearest legal value: 1"),
        ("--rounds 2.5", "argument --rounds: '2.5': must be a whole number from 1"),
        ("--dtypes fp64", "argument --dtypes: 'fp64': must be among fp32, bf16, fp16"),
        ("--dtypes bf16 --stages 1,2", "argument --dtypes: bf16: 01_naive, 02_coalesced take fp32"),
        ("--beta nan", "argument --beta: 'nan': must be a finite number"),
        ("--beta x", "argument --beta: 'x': must be a finite number"),
        ("--stage 1", "unrecognized arguments: --stage 1"),
    ],
)
def test_refused(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong argument ends with status 2 and its name, value and rule."""
    with pytest.raises(SystemExit) as ended:
        options.parse(words.split())
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_charts_without_matplotlib(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A chart that could not be drawn after the measuring is refused before it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        options.parse(["--plot", "x.png"])
    assert "charts need matplotlib; pip install matplotlib" in capsys.readouterr().err
