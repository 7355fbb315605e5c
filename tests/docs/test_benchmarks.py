"""docs/benchmarks.md equals the page generated from its results, and shows no invalid result."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bench.catalog import BENCHMARKS
from bench.report import build
from bench.report.page_text import format_number
from bench.report.targets import REPORT_ENTRIES

GOOD: dict[str, Any] = {
    "name": "p1",
    "size": {"nodes": 5000},
    "result": {"placements": 1000, "t_first_s": 0.01, "t_all_s": 2.5},
    "result_min": {"placements": 1000, "t_first_s": 0.01, "t_all_s": 2.25},
    "result_max": {"placements": 1000, "t_first_s": 0.01, "t_all_s": 2.75},
    "checks": {"counts_exact": True},
    "cpu_s": {"bus": 0.5, "scheduler": 1.5, "bench": 9.0},
    "rss_mib": {"bus": 64.0},
    "fsync": True,
    "replicas": 1,
    "runs": 5,
}


def section(text: str, name: str) -> str:
    return text.split(f"\n## {name}\n")[1].split("\n## ", maxsplit=1)[0]


def built(folder: Path, **changes: Any) -> tuple[str, dict[str, str]]:
    (folder / "p1.json").write_text(json.dumps({**GOOD, **changes}))
    return build.build(folder)


def test_the_page_is_what_the_results_say() -> None:
    """Made again from what is committed, the page and its pictures are the same bytes: `just bench-report`."""
    text, pictures = build.build()
    assert build.PAGE.read_text(encoding="utf-8") == text
    there = {one.name: one.read_text(encoding="utf-8") for one in build.PICTURES.glob("*.svg")}
    assert there == pictures


def test_a_result_is_shown_with_its_bars(tmp_path: Path) -> None:
    """Median, range, target, state, and the CPU of our processes without the bench."""
    text, pictures = built(tmp_path)
    assert "| [p1](#p1) | `t_all_s` | 2.50 | 2.25 to 2.75 | ≤ 3 | ≤ 1 | target reached |" in text
    assert "500 placements for each CPU second" in section(text, "p1")
    assert "| scheduler | 1.50 |  |" in section(text, "p1")
    assert {"all.svg", "p1.svg", "p1-cpu.svg"} <= set(pictures)
    for picture in pictures.values():
        assert ET.fromstring(picture).tag.endswith("svg")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"checks": {"counts_exact": True, "nothing_lost": False}}, "nothing_lost did not hold"),
        ({"checks": {}}, "nothing was checked"),
        ({"result": {}}, "no figures"),
        ({"fsync": False}, "measured on a bus that does not fsync"),
        ({"name": "p2"}, "the result is of p2"),
    ],
)
def test_what_is_no_figure_is_not_shown(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    """A failed check, no check, no fsync, another's result: said in its place, and no number of it stands anywhere."""
    text, pictures = built(tmp_path, **changes)
    assert f"refused: {why}" in text
    assert why in section(text, "p1")
    assert "2.50" not in section(text, "p1").split("published")[0]
    assert "p1.svg" not in pictures


def test_each_figure_says_of_which_day_and_release_it_is(tmp_path: Path) -> None:
    """In the table over everything and in its part; what is not recorded is said, and nothing is of "this release"."""
    versions = {"caravan": "0.1.0", "core": "0.1.0", "python": "3.11.7"}
    text, _ = built(tmp_path, measured="2026-11-20", versions=versions)
    assert "| target reached | 2026-11-20, release 0.1.0, core 0.1.0 |" in text
    assert "| measured | 2026-11-20, release 0.1.0, core 0.1.0 |" in section(text, "p1")
    assert "| measured | day not recorded |" in section(built(tmp_path)[0], "p1")
    assert "this release" not in build.PAGE.read_text(encoding="utf-8")
    assert "not recorded" not in build.PAGE.read_text(encoding="utf-8")


def test_what_is_known_of_benchmarks_is_of_benchmarks_there_are() -> None:
    """Bars and peers name benchmarks of the checkout, and each of these has a part."""
    known = set(BENCHMARKS)
    text, _ = build.build()
    assert {name for name in known if f"\n## {name}\n" not in text} == set()
    assert known & set(REPORT_ENTRIES)


def test_numbers_have_three_digits_that_count() -> None:
    """Large ones are whole with commas, small ones keep three digits."""
    told = [format_number(one) for one in (1_234_567.8, 123.4, 12.34, 1.234, 0.012345, 5, 0.0)]
    assert told == ["1,234,568", "123", "12.3", "1.23", "0.0123", "5", "0"]
