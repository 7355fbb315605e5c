"""The text of docs/benchmarks.md: a table over everything, then a part for each benchmark.

Reads no file and no clock.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.harness.runner import IDLE_LOAD_MAX, BenchResult
from bench.report.svg_charts import ChartRow, bars, distances
from bench.report.targets import PublishedFigure, ReportedBenchmark, Target

_HEAD = """# Benchmarks

Each figure is printed by one command, which also checks the result: no node over its capacity, exact counts, replayed
tables equal to live ones, nothing lost. A run with a failed check has no figures. Each part describes the measurement,
the machine and the number of runs; tables show the median, minimum and maximum.

```sh
caravan bench            # list the benchmarks
caravan bench p1         # run one at its full size
caravan bench p1 --size 0.1 --json
just bench-all           # run all, one after the other, into bench/results; use an idle machine
just bench-report        # this page and its pictures from bench/results
```

A bus is a real nats-server that syncs every write to the disk before it acknowledges it (fsync), and every role is a
process of its own with its own permissions. *Target* is the figure that release 0.1.0 was built to reach, *goal* the
one beyond it. CPU seconds are those of all threads while the clock ran. *Measured* names the day, the release, and
the version of its decisions (`core` of a record): the tree that you read may be a later one.
"""
_NONE = "-"


def render_page_text(shown: Sequence[ReportedBenchmark]) -> tuple[str, dict[str, str]]:
    """Return the page, and the pictures by file name."""
    pictures: dict[str, str] = {}
    parts = [_HEAD, _summary(shown, pictures)]
    parts += [_part(one, pictures) for one in shown]
    return "\n".join(parts), pictures


# ---- the table over everything ----


def _summary(shown: Sequence[ReportedBenchmark], pictures: dict[str, str]) -> str:
    rows = [["bench", "figure", "median", "range", "target", "goal", "state", "measured"]]
    drawn: list[ChartRow] = []
    for one in shown:
        link = f"[{one.name}](#{one.name})"
        if one.result is None:
            why = f"refused: {one.refused}" if one.refused else _absent(one)
            rows.append([link, "", "", "", "", "", why, ""])
            continue
        for bar in one.entry.bars:
            value = _at(one.result.result, bar, one.entry.bars)
            if value is None:
                continue
            low = _at(one.result.result_min, bar, one.entry.bars)
            high = _at(one.result.result_max, bar, one.entry.bars)
            between = (
                f"{format_number(low)} to {format_number(high)}"
                if low is not None and high is not None
                else ""
            )
            row = [link, bar.label or f"`{bar.key}`", format_number(value), between]
            row += [_bound(bar, bar.closes), _bound(bar, bar.goal), _state(bar, value)]
            row.append(_measured(one.result))
            rows.append(row)
            drawn.append(_distance(one.name, bar, value))
    lines = ["## Summary", "", *_table(rows)]
    if drawn:
        pictures["all.svg"] = distances(
            "How many times better than the target, or than the goal where there is no target",
            drawn,
        )
        lines += ["", "![Ratio of each figure to its target](benchmarks/all.svg)"]
    return "\n".join([*lines, ""])


def _absent(one: ReportedBenchmark) -> str:
    return "[packing](packing.md)" if "packing.md" in one.entry.note else "not measured"


def _distance(name: str, bar: Target, value: float) -> ChartRow:
    wanted = bar.wanted
    better = _times(value, wanted, least=bar.least)
    what = (bar.label or bar.key).removesuffix(".*")
    shown = f"{format_number(value)} of {format_number(wanted)}"
    kind = "good" if _holds(bar, value, wanted) else "bad"
    return ChartRow(label=f"{name} {what}", value=better, shown=shown, kind=kind)


def _times(value: float, wanted: float, *, least: bool) -> float:
    """How many times better than the target; 0: without bound."""
    above, below = (value, wanted) if least else (wanted, value)
    if above > 0 and below > 0:
        return above / below
    return 0.0 if value <= wanted else 1e-3


def _holds(bar: Target, value: float, wanted: float) -> bool:
    return value >= wanted if bar.least else value <= wanted


def _state(bar: Target, value: float) -> str:
    if bar.goal is not None and _holds(bar, value, bar.goal):
        return "goal reached"
    return "target reached" if bar.closes is not None and _holds(bar, value, bar.closes) else "open"


def _bound(bar: Target, value: float | None) -> str:
    if value is None:
        return _NONE
    return f"{'≥' if bar.least else '≤'} {format_number(value)}"


# ---- one benchmark ----


def _part(one: ReportedBenchmark, pictures: dict[str, str]) -> str:
    lines = [f"## {one.name}", "", f"**{one.title}**", ""]
    lines += [one.about, ""] if one.about else []
    options = f" {one.entry.options}" if one.entry.options else ""
    lines += ["```sh", f"caravan bench {one.name}{options}", "```", ""]
    if one.result is None:
        why = f"The last result is not shown: {one.refused}." if one.refused else ""
        lines += [why or ("Not measured yet." if not one.entry.note else ""), ""]
    else:
        lines += _figures(one, one.result, pictures)
    lines += _peers(one)
    lines += [one.entry.note, ""] if one.entry.note else []
    if one.result is not None:
        lines += _processes(one.name, one.result, pictures)
        lines += _ground(one.result)
    while lines and not lines[-1]:
        lines.pop()
    return "\n".join(
        [line for at, line in enumerate(lines) if line or (at and lines[at - 1])] + [""]
    )


def _figures(one: ReportedBenchmark, result: BenchResult, pictures: dict[str, str]) -> list[str]:
    found = dict(flat(result.result))
    low, high = dict(flat(result.result_min)), dict(flat(result.result_max))
    rows = [["result", "median", "minimum", "maximum", "target", "goal"]]
    for key, value in found.items():
        bar = _bar_of(one.entry.bars, key)
        rows.append(
            [
                f"`{key}`",
                _value(value),
                _value(low.get(key)),
                _value(high.get(key)),
                _bound(bar, bar.closes) if bar else _NONE,
                _bound(bar, bar.goal) if bar else _NONE,
            ]
        )
    lines = [*_table(rows), ""]
    drawn = [_drawn(one, key, found, low, high) for key in found if _is_drawn(one, key)]
    if drawn:
        name = f"{one.name}.svg"
        pictures[name] = bars(f"{one.name}: medians, with the range of {result.runs} runs", drawn)
        lines += [f"![Figures of {one.name}](benchmarks/{name})", ""]
    return lines


def _is_drawn(one: ReportedBenchmark, key: str) -> bool:
    return any(key == wanted or key.startswith(f"{wanted}.") for wanted in one.entry.picture)


def _drawn(
    one: ReportedBenchmark,
    key: str,
    found: Mapping[str, Any],
    low: Mapping[str, Any],
    high: Mapping[str, Any],
) -> ChartRow:
    bar = _bar_of(one.entry.bars, key)
    return ChartRow(
        label=key,
        value=float(found[key]),
        shown=format_number(found[key]),
        low=_float(low.get(key)),
        high=_float(high.get(key)),
        mark=bar.wanted if bar else None,
    )


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _bar_of(known: Sequence[Target], key: str) -> Target | None:
    return next((bar for bar in known if bar.means(key)), None)


def _peers(one: ReportedBenchmark) -> list[str]:
    if not one.entry.peers:
        return []
    rows = [["best published figure of others", "source", "measured as said below"]]
    rows += [[peer.text, peer.source, _against(one, peer)] for peer in one.entry.peers]
    return [*_table(rows), ""]


def _against(one: ReportedBenchmark, peer: PublishedFigure) -> str:
    value = one.result.result.get(peer.key) if one.result is not None else None
    if not peer.value or not isinstance(value, int | float) or not value:
        return _NONE
    is_rate = peer.key.endswith("_per_s") or peer.key == "slope"
    times = value / peer.value if is_rate else peer.value / value
    return (
        f"{format_number(value)}: {format_number(times)} times better"
        if times >= 1
        else format_number(value)
    )


def _processes(name: str, result: BenchResult, pictures: dict[str, str]) -> list[str]:
    if not result.cpu_s:
        return []
    rows = [["process", "CPU s", "resident MiB"]]
    for process in sorted(result.cpu_s, key=lambda one: (-result.cpu_s[one], one)):
        memory = result.rss_mib.get(process)
        rows.append([process, f"{result.cpu_s[process]:.2f}", _value(memory)])
    ours = sum(
        spent for process, spent in result.cpu_s.items() if process not in {"bench", "fleet"}
    )
    placements = result.result.get("placements")
    lines = [*_table(rows), ""]
    if placements and ours:
        per = format_number(placements / ours)
        lines += [
            f"{per} placements for each CPU second of all processes, the server's included.",
            "",
        ]
    if len(rows) > 2:
        drawn = [
            ChartRow(
                label=process, value=result.cpu_s[process], shown=f"{result.cpu_s[process]:.2f} s"
            )
            for process in sorted(result.cpu_s, key=lambda one: (-result.cpu_s[one], one))
        ]
        pictures[f"{name}-cpu.svg"] = bars(f"{name}: CPU seconds by process", drawn)
        lines += [f"![CPU seconds of {name} by process](benchmarks/{name}-cpu.svg)", ""]
    return lines


def _measured(result: BenchResult) -> str:
    versions = (("release", "caravan"), ("core", "core"))
    told = [f"{word} {result.versions[key]}" for word, key in versions if result.versions.get(key)]
    return ", ".join([result.measured or "day not recorded", *told])


def _ground(result: BenchResult) -> list[str]:
    """Describe the conditions of the measurement."""
    size = ", ".join(f"{key} {format_number(value)}" for key, value in result.size.items())
    bus = f"fsync on, {result.replicas} replica{'s' if result.replicas > 1 else ''}"
    busy = " (busy machine)" if result.load_before > IDLE_LOAD_MAX else ""
    versions = ", ".join(
        f"{name} {one}" for name, one in result.versions.items() if one and name != "core"
    )
    rows = [
        ["measured", _measured(result)],
        ["size", size],
        ["runs", str(result.runs)],
        ["checks, all passed", ", ".join(f"`{name}`" for name in result.checks)],
        ["bus", bus if result.replicas else "none: inside one process"],
        ["log", f"{format_number(result.log_bytes)} bytes" if result.log_bytes else _NONE],
        ["machine", _machine(result.machine)],
        ["load before", f"{result.load_before:.2f}{busy}"],
        ["versions", versions],
    ]
    return [*_table([["conditions", ""], *rows]), ""]


def _machine(machine: Mapping[str, Any]) -> str:
    cores, memory = machine.get("cores", 0), format_number(machine.get("memory_mib", 0))
    return f"{machine.get('cpu', '')}, {cores} cores, {memory} MiB, {machine.get('system', '')}"


# ---- numbers and tables ----


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Flatten objects to paths; lists are left out."""
    out: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, dict):
            out += flat(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            out.append((f"{prefix}{key}", value))
    return out


def _at(values: Mapping[str, Any], bar: Target, known: Sequence[Target]) -> float | None:
    """The figure of a target; the worst where it matches several."""
    found = [
        float(value)
        for key, value in flat(values)
        if isinstance(value, int | float) and _bar_of(known, key) is bar
    ]
    if not found:
        return None
    return min(found) if bar.least else max(found)


def format_number(value: float) -> str:
    """Write a number with three significant digits, without decimals from 100 on."""
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_number(value) if isinstance(value, int | float) else str(value)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *body = rows
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in body
    ]
