"""Charts of benchmarks as SVG: horizontal bars with ranges, and distances from the figures to reach.

Readable on light and on dark backgrounds. The same figures give the same bytes.
"""

import math
from collections.abc import Sequence
from html import escape

import msgspec

_WIDTH = 800
_LEFT = 210
_RIGHT = 130
_ROW = 24
_TOP = 34
_STYLE = """<style>
text{font:12px system-ui,sans-serif;fill:#57606a}
.title{font-weight:600;font-size:13px;fill:#24292f}
.bar{fill:#0969da}.good{fill:#1a7f37}.bad{fill:#bc4c00}.peer{fill:#8c959f}
.range{stroke:#24292f;stroke-width:1.5}.line{stroke:#bc4c00;stroke-width:1.5;stroke-dasharray:4 3}
.axis{stroke:#8c959f;stroke-width:1}
@media(prefers-color-scheme:dark){text{fill:#9198a1}.title{fill:#f0f6fc}
.bar{fill:#4493f8}.good{fill:#3fb950}.bad{fill:#db6d28}.peer{fill:#656c76}
.range{stroke:#f0f6fc}.line{stroke:#db6d28}.axis{stroke:#656c76}}
</style>"""


class ChartRow(msgspec.Struct, frozen=True, kw_only=True):
    """One bar. `low` and `high`: its range; `mark`: a figure to reach, drawn as a line; `kind` is a colour's name."""

    label: str
    value: float
    shown: str
    low: float | None = None
    high: float | None = None
    mark: float | None = None
    kind: str = "bar"


def bars(title: str, rows: Sequence[ChartRow]) -> str:
    """Draw bars from zero on one scale."""
    most = max(
        (one for row in rows for one in (row.value, row.high, row.mark) if one is not None),
        default=0.0,
    )
    scale = (_WIDTH - _LEFT - _RIGHT) / most if most > 0 else 0.0
    parts = []
    for at, row in enumerate(rows):
        y = _TOP + at * _ROW
        parts.append(_label(row.label, y))
        parts.append(_rect(row.kind, _LEFT, y + 4, max(row.value * scale, 1.0)))
        if row.low is not None and row.high is not None and row.high > row.low:
            parts.append(
                _line("range", _LEFT + row.low * scale, y + 11, _LEFT + row.high * scale, y + 11)
            )
        if row.mark is not None:
            x = _LEFT + row.mark * scale
            parts.append(_line("line", x, y + 1, x, y + _ROW - 3))
        end = max(row.value, row.high or 0.0, row.mark or 0.0) * scale
        parts.append(_text(_LEFT + end + 6, y + 15, row.shown))
    return _svg(title, parts, _TOP + len(rows) * _ROW + 8)


def distances(title: str, rows: Sequence[ChartRow]) -> str:
    """Draw how many times better than its bar each value is, 1 in the middle, on a logarithmic scale."""
    widest = max((abs(math.log10(row.value)) for row in rows if row.value > 0), default=0.0)
    decades = max(math.ceil(widest), 1)
    middle = _LEFT + (_WIDTH - _LEFT - _RIGHT) / 2
    scale = (_WIDTH - _LEFT - _RIGHT) / 2 / decades
    parts = []
    for at, row in enumerate(rows):
        y = _TOP + at * _ROW
        # Nothing where nothing was requested: as good as it can be.
        x = middle + (math.log10(row.value) if row.value > 0 else decades) * scale
        parts.append(_label(row.label, y))
        parts.append(_rect(row.kind, min(x, middle), y + 4, max(abs(x - middle), 1.0)))
        parts.append(_text(max(x, middle) + 6, y + 15, row.shown))
    bottom = _TOP + len(rows) * _ROW
    parts.append(_line("axis", middle, _TOP - 6, middle, bottom))
    return _svg(title, parts, bottom + 8)


def _svg(title: str, parts: Sequence[str], height: int) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">'
    )
    named = f'<text class="title" x="8" y="18">{escape(title)}</text>'
    return "\n".join([head, _STYLE, named, *parts, "</svg>\n"])


def _label(text: str, y: int) -> str:
    return f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(text)}</text>'


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y}">{escape(text)}</text>'


def _rect(kind: str, x: float, y: float, width: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="14" rx="2"/>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2}"/>'
