"""docs/benchmarks.md from bench/results: `python -m bench.report`, or `just bench-report`.

Decides which result may be shown as a figure: one whose checks all held, and which was measured with fsync where there
was a bus. The same results give the same bytes. What bars and peers there are: `published.py`; how it looks: `pages.py`
and `pictures.py`.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bench.pages import page
from bench.published import ENTRIES, Entry
from services.cli.benches import Result, names

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "benchmarks"
#: Benchmarks whose results stand on a page of their own, by variant.
ELSEWHERE = frozenset({"p21", "p22"})
_RESULT = msgspec.json.Decoder(Result)


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark of the page. `refused` says why there is no figure; then `result` is None."""

    name: str
    title: str
    about: str
    entry: Entry
    result: Result | None = None
    refused: str = ""


def build(results: Path = RESULTS, bench: Path = ROOT / "bench") -> tuple[str, dict[str, str]]:
    """Return the page, and the pictures by file name."""
    found = [_shown(name, results, bench) for name in names(bench)]
    return page(found)


def _shown(name: str, results: Path, bench: Path) -> Shown:
    title, about = described(bench / f"{name}.py")
    shown = Shown(name=name, title=title, about=about, entry=ENTRIES.get(name, Entry()))
    path = results / f"{name}.json"
    if name in ELSEWHERE or not path.exists():
        return shown
    try:
        result = _RESULT.decode(path.read_bytes())
    except msgspec.DecodeError as err:
        return msgspec.structs.replace(shown, refused=f"{path.name} does not decode: {err}")
    refused = refusal(name, result)
    if refused:
        return msgspec.structs.replace(shown, refused=refused)
    return msgspec.structs.replace(shown, result=result)


def refusal(name: str, result: Result) -> str:
    """Say why a result is no figure; empty: it is one."""
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


def described(path: Path) -> tuple[str, str]:
    """First line of a benchmark's docstring, and the rest of it as one paragraph a piece."""
    text = path.read_text(encoding="utf-8").split('"""')[1]
    first, _, rest = text.partition("\n")
    # What is indented there are commands, which stand in the page anyhow.
    lines = [line for line in rest.strip().splitlines() if not line.startswith("    ")]
    return first.strip(), "\n".join(lines).strip()


def written(text: str, pictures: Mapping[str, str]) -> list[str]:
    """Write what differs from what is there; returns the names of what was written or taken away."""
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
    changed = written(text, pictures)
    print(f"docs/benchmarks.md: {len(changed)} files changed")
    refused = [
        f"{name}: {why}"
        for name in names(ROOT / "bench")
        if (why := _shown(name, RESULTS, ROOT / "bench").refused)
    ]
    for line in refused:
        print(f"refused {line}", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
