"""docs/benchmarks.md from bench/results: `python -m bench.report.build`, or `just bench-report`.

A result is shown as a figure only if all its checks held, and if it was measured with fsync where there was a bus. The
same results give the same bytes. Targets: `targets.py`; layout: `page_text.py` and `svg_charts.py`.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bench.catalog import BENCHMARKS
from bench.harness.runner import BenchResult
from bench.report.page_text import render_page_text
from bench.report.targets import REPORT_ENTRIES, ReportedBenchmark, ReportEntry

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "benchmarks"
#: Benchmarks whose results are on a page of their own, by variant.
SEPARATE_PAGE = frozenset({"p21", "p22"})
_RESULT = msgspec.json.Decoder(BenchResult)


def build(results: Path = RESULTS) -> tuple[str, dict[str, str]]:
    """Return the page, and the pictures by file name."""
    return render_page_text([_shown(name, results) for name in BENCHMARKS])


def _shown(name: str, results: Path) -> ReportedBenchmark:
    title, about = read_description((ROOT / BENCHMARKS[name].replace(".", "/")).with_suffix(".py"))
    shown = ReportedBenchmark(
        name=name, title=title, about=about, entry=REPORT_ENTRIES.get(name, ReportEntry())
    )
    path = results / f"{name}.json"
    if name in SEPARATE_PAGE or not path.exists():
        return shown
    try:
        result = _RESULT.decode(path.read_bytes())
    except msgspec.DecodeError as err:
        return msgspec.structs.replace(shown, refused=f"{path.name} does not decode: {err}")
    refused = unpublishable_reason(name, result)
    if refused:
        return msgspec.structs.replace(shown, refused=refused)
    return msgspec.structs.replace(shown, result=result)


def unpublishable_reason(name: str, result: BenchResult) -> str:
    """Explain why a result is not shown as a figure; empty: it is shown."""
    if result.name != name:
        return f"the result is of {result.name or 'no benchmark'}"
    failed = sorted(check for check, holds in result.checks.items() if not holds)
    if failed:
        return f"{', '.join(failed)} did not hold"
    if not result.checks:
        return "nothing was checked"
    if not result.result:
        return "no figures"
    if result.replicas and not result.fsync:
        return "measured on a bus that does not fsync"
    return ""


def read_description(path: Path) -> tuple[str, str]:
    """First line of a benchmark's docstring, and the rest of it as one paragraph a piece."""
    text = path.read_text(encoding="utf-8").split('"""')[1]
    first, _, rest = text.partition("\n")
    # Indented lines are commands, which the page shows anyway.
    lines = [line for line in rest.strip().splitlines() if not line.startswith("    ")]
    return first.strip(), "\n".join(lines).strip()


def write_changed(text: str, pictures: Mapping[str, str]) -> list[str]:
    """Write the files that changed, and remove stale pictures; returns their names."""
    PICTURES.mkdir(exist_ok=True)
    files: dict[Path, Any] = {
        PAGE: text,
        **{PICTURES / name: one for name, one in pictures.items()},
    }
    changed = []
    for path, content in files.items():
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            path.write_text(content, encoding="utf-8")
            changed.append(path.name)
    for stale in sorted(set(PICTURES.glob("*.svg")) - set(files)):
        stale.unlink()
        changed.append(stale.name)
    return changed


def main() -> int:
    """Write the page; exit 1 when a result was refused."""
    text, pictures = build()
    changed = write_changed(text, pictures)
    print(f"docs/benchmarks.md: {len(changed)} files changed")
    refused = [f"{name}: {why}" for name in BENCHMARKS if (why := _shown(name, RESULTS).refused)]
    for line in refused:
        print(f"refused {line}", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
