"""The text of docs/benchmarks.md: a table over everything, then a part for each benchmark.

Decides the words and how numbers are written. Reads no file and no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.pictures import Row, bars, distances
from bench.published import Bar, Peer
from services.cli.benches import LOAD_MAX, Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.report import Shown

_HEAD = """# Benchmarks

Every figure here was printed by one command, which also checked that what it measured was right: no node over its
capacity, counts exact, replayed tables equal to live ones, nothing lost. A run whose check fails has no figures. Each
part says what is measured, on which machine, with how many runs; tables show the median, the least and the most.

```sh
caravan bench            # what there is
caravan bench p1         # one of them, at its full size
caravan bench p1 --size 0.1 --json
just bench-all           # all of them one after the other, into bench/results; take an idle machine
just bench-report        # this page and its pictures from bench/results
```

Where there is a bus, it is a real nats-server that has every write on the disk before it acknowledges it (fsync), and
every role is a process of its own with its own permissions. *Closes* is the figure that this release was built to
reach, *goal* the one beyond it. CPU seconds are those of all threads while the clock ran.
"""
_NONE = "-"


def page(shown: Sequence[Shown]) -> tuple[str, dict[str, str]]:
    """Return the page, and the pictures by file name."""
    pictures: dict[str, str] = {}
    parts = [_HEAD, _summary(shown, pictures)]
    parts += [_part(one, pictures) for one in shown]
    return "\n".join(parts), pictures


# ---- the table over everything ----


def _summary(shown: Sequence[Shown], pictures: dict[str, str]) -> str:
    rows = [["bench", "figure", "median", "least to most", "closes", "goal", "state"]]
    drawn: list[Row] = []
    for one in shown:
        link = f"[{one.name}](#{one.name})"
        if one.result is None:
            why = f"refused: {one.refused}" if one.refused else _absent(one)
            rows.append([link, "", "", "", "", "", why])
            continue
        for bar in one.entry.bars:
            value = _at(one.result.result, bar, one.entry.bars)
            if value is None:
                continue
            low = _at(one.result.result_min, bar, one.entry.bars)
            high = _at(one.result.result_max, bar, one.entry.bars)
            between = (
                f"{number(low)} to {number(high)}" if low is not None and high is not None else ""
            )
            row = [link, bar.label or f"`{bar.key}`", number(value), between]
            row += [_bound(bar, bar.closes), _bound(bar, bar.goal), _state(bar, value)]
            rows.append(row)
            drawn.append(_distance(one.name, bar, value))
    lines = ["## All of them", "", *_table(rows)]
    if drawn:
        pictures["all.svg"] = distances(
            "How many times better than the figure that closes it, or the goal where none does",
            drawn,
        )
        lines += ["", "![How far each figure is from the one that closes it](benchmarks/all.svg)"]
    return "\n".join([*lines, ""])


def _absent(one: Shown) -> str:
    return "[packing](packing.md)" if "packing.md" in one.entry.note else "not measured"


def _distance(name: str, bar: Bar, value: float) -> Row:
    wanted = bar.wanted
    better = _times(value, wanted, least=bar.least)
    what = (bar.label or bar.key).removesuffix(".*")
    shown = f"{number(value)} of {number(wanted)}"
    kind = "good" if _holds(bar, value, wanted) else "bad"
    return Row(label=f"{name} {what}", value=better, shown=shown, kind=kind)


def _times(value: float, wanted: float, *, least: bool) -> float:
    """How many times better than wanted; 0: without bound."""
    above, below = (value, wanted) if least else (wanted, value)
    if above > 0 and below > 0:
        return above / below
    return 0.0 if value <= wanted else 1e-3


def _holds(bar: Bar, value: float, wanted: float) -> bool:
    return value >= wanted if bar.least else value <= wanted


def _state(bar: Bar, value: float) -> str:
    if bar.goal is not None and _holds(bar, value, bar.goal):
        return "goal reached"
    return "closed" if bar.closes is not None and _holds(bar, value, bar.closes) else "open"


def _bound(bar: Bar, value: float | None) -> str:
    if value is None:
        return _NONE
    return f"{'≥' if bar.least else '≤'} {number(value)}"


# ---- one benchmark ----


def _part(one: Shown, pictures: dict[str, str]) -> str:
    lines = [f"## {one.name}", "", f"**{one.title}**", ""]
    lines += [one.about, ""] if one.about else []
    options = f" {one.entry.options}" if one.entry.options else ""
    lines += ["```sh", f"caravan bench {one.name}{options}", "```", ""]
    if one.result is None:
        why = f"The last result is no figure: {one.refused}." if one.refused else ""
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


def _figures(one: Shown, result: Result, pictures: dict[str, str]) -> list[str]:
    found = dict(flat(result.result))
    low, high = dict(flat(result.result_min)), dict(flat(result.result_max))
    rows = [["result", "median", "least", "most", "closes", "goal"]]
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


def _is_drawn(one: Shown, key: str) -> bool:
    return any(key == wanted or key.startswith(f"{wanted}.") for wanted in one.entry.picture)


def _drawn(
    one: Shown,
    key: str,
    found: Mapping[str, Any],
    low: Mapping[str, Any],
    high: Mapping[str, Any],
) -> Row:
    bar = _bar_of(one.entry.bars, key)
    return Row(
        label=key,
        value=float(found[key]),
        shown=number(found[key]),
        low=_float(low.get(key)),
        high=_float(high.get(key)),
        mark=bar.wanted if bar else None,
    )


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _bar_of(known: Sequence[Bar], key: str) -> Bar | None:
    return next((bar for bar in known if bar.means(key)), None)


def _peers(one: Shown) -> list[str]:
    if not one.entry.peers:
        return []
    rows = [["the best that others published", "source", "this release, on the machine below"]]
    rows += [[peer.text, peer.source, _against(one, peer)] for peer in one.entry.peers]
    return [*_table(rows), ""]


def _against(one: Shown, peer: Peer) -> str:
    value = one.result.result.get(peer.key) if one.result is not None else None
    if not peer.value or not isinstance(value, int | float) or not value:
        return _NONE
    is_rate = peer.key.endswith("_per_s") or peer.key == "slope"
    times = value / peer.value if is_rate else peer.value / value
    return f"{number(value)}: {number(times)} times better" if times >= 1 else number(value)


def _processes(name: str, result: Result, pictures: dict[str, str]) -> list[str]:
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
        per = number(placements / ours)
        lines += [
            f"{per} placements for each CPU second of all processes, the server's included.",
            "",
        ]
    if len(rows) > 2:
        drawn = [
            Row(label=process, value=result.cpu_s[process], shown=f"{result.cpu_s[process]:.2f} s")
            for process in sorted(result.cpu_s, key=lambda one: (-result.cpu_s[one], one))
        ]
        pictures[f"{name}-cpu.svg"] = bars(f"{name}: CPU seconds by process", drawn)
        lines += [f"![CPU seconds of {name} by process](benchmarks/{name}-cpu.svg)", ""]
    return lines


def _ground(result: Result) -> list[str]:
    """Say on what it was measured."""
    size = ", ".join(f"{key} {number(value)}" for key, value in result.size.items())
    bus = f"fsync on, {result.replicas} replica{'s' if result.replicas > 1 else ''}"
    busy = ", which is a busy machine" if result.load_before > LOAD_MAX else ""
    versions = ", ".join(f"{name} {one}" for name, one in result.versions.items() if one)
    rows = [
        ["size", size],
        ["runs", str(result.runs)],
        ["checks, all held", ", ".join(f"`{name}`" for name in result.checks)],
        ["bus", bus if result.replicas else "none: inside one process"],
        ["log", f"{number(result.log_bytes)} bytes" if result.log_bytes else _NONE],
        ["machine", _machine(result.machine)],
        ["load before", f"{result.load_before:.2f}{busy}"],
        ["versions", versions],
    ]
    return [*_table([["ground", ""], *rows]), ""]


def _machine(machine: Mapping[str, Any]) -> str:
    cores, memory = machine.get("cores", 0), number(machine.get("memory_mib", 0))
    return f"{machine.get('cpu', '')}, {cores} cores, {memory} MiB, {machine.get('system', '')}"


# ---- numbers and tables ----


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Name what lies in objects by its path; lists are left out."""
    out: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, dict):
            out += flat(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            out.append((f"{prefix}{key}", value))
    return out


def _at(values: Mapping[str, Any], bar: Bar, known: Sequence[Bar]) -> float | None:
    """The figure of a bar; of several, which no other bar is about, the worst."""
    found = [
        float(value)
        for key, value in flat(values)
        if isinstance(value, int | float) and _bar_of(known, key) is bar
    ]
    if not found:
        return None
    return min(found) if bar.least else max(found)


def number(value: float) -> str:
    """Write a number: three digits that count, whole ones from 100 on."""
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
    return number(value) if isinstance(value, int | float) else str(value)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *body = rows
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in body
    ]
