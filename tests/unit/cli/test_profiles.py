"""`just profile`: what it draws of folded stacks, and its error without permission."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from bench.report import flame_graph, profile

FOLDED = """main (a.py:1);step (a.py:7);decode (b.py:3) 6
main (a.py:1);step (a.py:9) 3
main (a.py:1);_worker (concurrent/futures/thread.py:81) 90
no stack
main (a.py:1);<lambda> (c.py:2) 1
"""


def test_a_table_takes_lines_of_a_function_together() -> None:
    """Own and total parts add up over a function's lines; waiting threads do not count."""
    found = flame_graph.hottest_frames(flame_graph.read(FOLDED.splitlines()))
    assert [(one.frame, one.own, one.total) for one in found] == [
        ("decode (b.py)", 0.6, 0.6),
        ("step (a.py)", 0.3, 0.9),
        ("<lambda> (c.py)", 0.1, 0.1),
    ]


def test_a_flame_graph_is_a_picture_of_all_samples() -> None:
    """Well-formed SVG: the root is as wide as the picture, children lie within, names are escaped."""
    picture = ET.fromstring(flame_graph.render_svg(flame_graph.read(FOLDED.splitlines()), "view"))
    space = "{http://www.w3.org/2000/svg}"
    boxes = {
        group.findtext(f"{space}title") or "": group.find(f"{space}rect")
        for group in picture.iter(f"{space}g")
    }
    widths = {
        name.partition(" ")[0]: box.get("width") for name, box in boxes.items() if box is not None
    }
    assert (
        widths["main"] == "1600.0" and widths["decode"] == "960.0" and widths["<lambda>"] == "160.0"
    )
    assert "10 samples" in (picture.findtext(f"{space}text") or "")


def test_what_was_sampled_is_written(tmp_path: Path) -> None:
    """A picture, a table and the stacks for each process; one without samples is left out."""
    (tmp_path / "view.folded").write_text(FOLDED)
    (tmp_path / "idle.folded").write_text("")
    (tmp_path / "view.log").write_text("py-spy> Sampling process")
    assert profile.write_profiles(tmp_path) == [("view", 10)]
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        *("idle.folded", "view.folded", "view.svg", "view.txt"),
    ]
    assert "decode (b.py)" in (tmp_path / "view.txt").read_text()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Error: Permission Denied: Try running again with elevated permissions", "ptrace"),
        ("Error: Operation not permitted (os error 1)", "ptrace"),
        ("Error: Failed to find python version\n", "Failed to find python version"),
        ("", "printed nothing"),
    ],
)
def test_where_nobody_may_look_it_says_so(said: str, told: str) -> None:
    """A refused sampler becomes one line that says what would help."""
    assert told in profile.sampler_error(said)


def test_without_a_sampler_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """No py-spy: one line, exit 1, before any benchmark runs."""
    monkeypatch.setattr(profile.shutil, "which", lambda _: None)
    monkeypatch.setattr(profile.sys, "executable", str(tmp_path / "python"))
    assert profile.main(["p10", "--out", str(tmp_path / "out")]) == 1
    assert "no py-spy" in capsys.readouterr().err
