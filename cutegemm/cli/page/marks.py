# SPDX-License-Identifier: Apache-2.0
"""SVG elements and tables as text; their colors are CSS classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

# colors of the palette: classes "f0" to "f7"
COLOURS = 8


def box(x: float, y: float, w: float, h: float, kind: str, title: str = "") -> str:
    """A rectangle of a class, with a tooltip."""
    head = f'<rect x="{x:.6g}" y="{y:.6g}" width="{w:.6g}" height="{h:.6g}" class="{kind}"'
    return f"{head}><title>{escape(title)}</title></rect>" if title else f"{head}/>"


def words(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    """A line of text; `anchor` is "middle" or "end"."""
    more = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x:.6g}" y="{y:.6g}"{more}>{escape(text)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:.6g}" y1="{y1:.6g}" x2="{x2:.6g}" y2="{y2:.6g}" class="{kind}"/>'


def figure(name: str, caption: str, size: tuple[float, float], parts: Iterable[str], more: str = "") -> str:
    """A figure with its caption; `more` are attributes of the SVG."""
    return f'<figure id="{name}">{svg(name, size, parts, more)}<figcaption>{escape(caption)}</figcaption></figure>'


def svg(name: str, size: tuple[float, float], parts: Iterable[str], more: str = "") -> str:
    """An SVG of parts; `more` are further attributes."""
    head = f'<svg viewBox="0 0 {size[0]:.6g} {size[1]:.6g}" role="img"'
    return f'{head} aria-label="{escape(name)}"{more}>{"".join(parts)}</svg>'


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; cells are escaped."""
    head = "".join(f"<th>{escape(x)}</th>" for x in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(x))}</td>" for x in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def section(title: str, *parts: str) -> str:
    """A section with a heading."""
    name = title.lower().replace(" ", "-")
    return f'<section aria-labelledby="s-{name}"><h2 id="s-{name}">{escape(title)}</h2>{"".join(parts)}</section>'


def paragraph(text: str) -> str:
    """A paragraph."""
    return f"<p>{escape(text)}</p>"


def colour(index: int) -> str:
    """The class of a color."""
    return f"f{index % COLOURS}"
