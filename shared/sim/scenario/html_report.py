"""A report as one HTML page: tables and curves, in a single file without external resources.

Curves are inline SVG; colours follow the reader's light or dark scheme; every curve is labelled at its end, so that
colours need not be distinguished.
"""

from collections.abc import Sequence
from html import escape

import msgspec

from shared.sim.scenario.report import FigureDifference, ScenarioReport, WaitStats

#: Units of the drawings.
_WIDTH, _HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 150, 12, 40
_LABEL_GAP = 14
_COLOURS = 8
_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--dim:#5c6670;--line:#d5dae0;--paper:#fff;
--c0:#1f6fb2;--c1:#c4511d;--c2:#2b8a3e;--c3:#8a3ab9;--c4:#a37b00;--c5:#c2255c;--c6:#0b7285;--c7:#5c5f66}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ec;--dim:#a0a9b2;--line:#39414a;--paper:#15191d;
--c0:#6cb2ee;--c1:#f08c5a;--c2:#69c47c;--c3:#c792ea;--c4:#e0b93c;--c5:#f06595;--c6:#3bc9db;--c7:#adb5bd}}
body{background:var(--paper);color:var(--ink);font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:60rem;
padding:0 1rem}
h1{font-size:1.5rem;margin:0 0 .2rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{color:var(--dim);margin:.2rem 0 1rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}
th,td{padding:.15rem .7rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{color:var(--dim);font-weight:600}
svg{width:100%;height:auto;max-width:50rem}svg text{fill:var(--dim);font:12px system-ui,sans-serif}
svg .grid{stroke:var(--line);stroke-width:1}svg path{fill:none;stroke-width:1.8}
"""


class Curve(msgspec.Struct, frozen=True):
    """One curve: a name, and its points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def render_report(report: ScenarioReport, curves: Sequence[Curve]) -> str:
    """Render one report; `curves`: share of allocations placed after a number of seconds, by kind."""
    series = report.series
    t = series.t_s
    parts = [
        _head(report.name or "scenario", report.about),
        _facts(report),
        "<h2>Wait for the first placement</h2>",
        _waiting(report.waiting, "kind"),
        _drawn(curves, "seconds waited", "share placed", top=1.0),
        "<h2>By priority</h2>",
        _waiting(report.priorities, "priority"),
        "<h2>Use of ready nodes</h2>",
        _drawn([Curve(name, t, y) for name, y in series.used.items()], "seconds", "share", top=1.0),
        "<h2>Allocations</h2>",
        _drawn(
            [Curve("running", t, series.running), Curve("waiting", t, series.waiting)],
            "seconds",
            "allocations",
        ),
        "<h2>Running allocations, by kind of job</h2>",
        _drawn(
            [Curve(name, t, y) for name, y in series.running_by.items()], "seconds", "allocations"
        ),
        "<h2>Fragmentation: free capacity that no job can use</h2>",
        _drawn(
            [Curve(name, t, y) for name, y in series.fragmented.items()],
            "seconds",
            "share of free capacity",
            top=1.0,
        ),
        "<h2>Evaluation latency (lease to log), by leases outstanding</h2>",
        _table(
            ("leased", "decisions", "p50 ms", "p99 ms", "max ms"),
            [
                (
                    one.load,
                    one.decisions,
                    f"{one.p50_ms:.2f}",
                    f"{one.p99_ms:.2f}",
                    f"{one.max_ms:.2f}",
                )
                for one in report.decisions
            ],
        ),
    ]
    return _whole(report.name or "scenario", parts)


def render_comparison(
    a: ScenarioReport, b: ScenarioReport, differences: Sequence[FigureDifference]
) -> str:
    """Render two reports side by side."""
    parts = [
        _head(f"{a.name or 'a'} | {b.name or 'b'}", "a is the first, b the second"),
        _table(
            ("figure", "a", "b", "b - a"),
            [
                (
                    one.figure,
                    format_number(one.a),
                    format_number(one.b),
                    format_number(one.b - one.a),
                )
                for one in differences
            ],
        ),
    ]
    for title, field in (("Use", "used"), ("Fragmentation", "fragmented")):
        curves = [
            Curve(f"{side} {name}", one.series.t_s, y)
            for side, one in (("a", a), ("b", b))
            for name, y in getattr(one.series, field).items()
            if name != "disk"
        ]
        parts += [f"<h2>{title}</h2>", _drawn(curves, "seconds", "share", top=1.0)]
    waiting = [
        Curve(f"{side} waiting", one.series.t_s, one.series.waiting)
        for side, one in (("a", a), ("b", b))
    ]
    parts += ["<h2>Waiting allocations</h2>", _drawn(waiting, "seconds", "allocations")]
    return _whole("comparison", parts)


def format_number(value: float) -> str:
    """Format a figure, short but exact enough."""
    if value == int(value):
        return str(int(value))
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.1f}"


def _whole(title: str, parts: Sequence[str]) -> str:
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _head(title: str, about: str) -> str:
    return f"<h1>{escape(title)}</h1>" + (f"<p>{escape(about)}</p>" if about else "")


def _facts(report: ScenarioReport) -> str:
    placed = report.placements
    rows = [
        ("nodes, workers", f"{report.nodes}, {report.schedulers}"),
        ("algorithm", report.algorithm),
        ("virtual time", f"{format_number(report.duration_s)} s"),
        (
            "jobs: submitted, placed, complete, waiting",
            _several(report.jobs, "submitted", "placed", "complete", "waiting"),
        ),
        (
            "allocations: placed, failed, lost, evicted",
            _several(report.allocations, "placed", "failed", "lost", "evicted"),
        ),
        (
            "placed per second: allocations, groups, jobs",
            ", ".join(
                format_number(placed[f"{one}_per_s"]) for one in ("allocations", "groups", "jobs")
            ),
        ),
        (
            "maximum in a second",
            ", ".join(
                format_number(placed[f"{one}_peak_per_s"])
                for one in ("allocations", "groups", "jobs")
            ),
        ),
        (
            "not placed for lack of capacity",
            ", ".join(f"{name} {n}" for name, n in report.unplaced.items()) or "0",
        ),
        (
            "Jain fairness: among jobs, among kinds",
            f"{report.fairness['jain_jobs']:.3f}, {report.fairness['jain_kinds']:.3f}",
        ),
        ("log records", f"{report.records} ({report.bytes} bytes), {report.digest}"),
    ]
    return _table(("", ""), rows)


def _several(values: dict[str, int], *names: str) -> str:
    return ", ".join(str(values[name]) for name in names)


def _waiting(rows: Sequence[WaitStats], title: str) -> str:
    return _table(
        (
            title,
            "jobs",
            "placed",
            "waiting",
            "p50 s",
            "p90 s",
            "p99 s",
            "max s",
            "oldest wait s",
        ),
        [
            (
                *(one.name, one.jobs, one.placed, one.waiting),
                *(
                    format_number(round(value, 3))
                    for value in (one.p50_s, one.p90_s, one.p99_s, one.max_s, one.oldest_s)
                ),
            )
            for one in rows
        ],
    )


def _table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles) if any(titles) else ""
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>"


# ---- curves ----


def _drawn(curves: Sequence[Curve], x_name: str, y_name: str, *, top: float = 0.0) -> str:
    """Draw curves; `top`: the end of the value axis, 0: the largest value."""
    curves = [one for one in curves if len(one.x)][:_COLOURS]
    if not curves:
        return ""
    x_max = max(max(one.x) for one in curves) or 1
    y_max = top or max(max(one.y) for one in curves) or 1
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        share = min(max(y / y_max, 0.0), 1.0)
        return round(_LEFT + x / x_max * width, 1), round(_TOP + height - share * height, 1)

    out = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(y_name)}">']
    for part in range(5):
        y = at(0, y_max * part / 4)[1]
        out.append(f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + width}" y1="{y}" y2="{y}"/>')
        label = _mark(y_max * part / 4, y_max)
        out.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{label}</text>')
        x = at(x_max * part / 4, 0)[0]
        mark = _mark(x_max * part / 4, x_max)
        out.append(f'<text x="{x}" y="{_HEIGHT - 24}" text-anchor="middle">{mark}</text>')
    out.append(
        f'<text x="{_LEFT + width}" y="{_HEIGHT - 6}" text-anchor="end">{escape(x_name)}</text>'
    )
    taken: list[float] = []
    for nth, one in enumerate(curves):
        points = [at(x, y) for x, y in zip(one.x, one.y, strict=True)]
        path = "M" + "L".join(f"{x},{y}" for x, y in points)
        out.append(f'<path d="{path}" style="stroke:var(--c{nth})"/>')
        label_y = _free(points[-1][1] + 4, taken)
        taken.append(label_y)
        out.append(
            f'<text x="{_LEFT + width + 6}" y="{label_y}" style="fill:var(--c{nth})">{escape(one.name[:22])}</text>'
        )
    out.append("</svg>")
    return "".join(out)


def _mark(value: float, most: float) -> str:
    """Format the label of a value on an axis that ends at `most`."""
    return f"{value:.0f}" if most >= 20 else f"{value:.2f}"


def _free(y: float, taken: Sequence[float]) -> float:
    """Return a free position for a label near `y`."""
    for step in range(len(taken) + 1):
        for tried in (y + step * _LABEL_GAP, y - step * _LABEL_GAP):
            inside = _TOP <= tried <= _HEIGHT - _BOTTOM
            if inside and all(abs(tried - other) >= _LABEL_GAP for other in taken):
                return tried
    return y + len(taken) * _LABEL_GAP
