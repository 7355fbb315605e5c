"""Documents: what they point at exists, and the two commands are where CI looks for them."""

import re

from tests.tidy.tree import ROOT, files, report

LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


def test_links_lead_somewhere() -> None:
    """Every relative link of a Markdown file names a file or folder of the tree."""
    broken = [
        f"{name}: {target}"
        for name in files()
        if name.endswith(".md")
        for target in LINK.findall((ROOT / name).read_text(encoding="utf-8"))
        if not (ROOT / name).parent.joinpath(target).exists()
    ]
    assert not broken, report(broken)


def test_readme_has_the_two_commands() -> None:
    """README.md offers exactly two commands to copy that start from python3: the main job, then all tests."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    commands = [line for block in blocks for line in block.splitlines() if line[:8] == "python3 "]
    assert commands == ["python3 deploy/bootstrap.py demo", "python3 deploy/bootstrap.py test"]


def test_locks_hold_every_dependency() -> None:
    """Every requirement of the locks is one exact version with a hash."""
    for lock in sorted((ROOT / "deploy").glob("requirements*.txt")):
        entries = re.findall(
            r"^(\S+?)==\S+.*\\\n((?: +--hash=sha256:\w+.*\n)+)", lock.read_text(), re.MULTILINE
        )
        named = re.findall(r"^([A-Za-z0-9][^\s=]*)", lock.read_text(), re.MULTILINE)
        assert [name for name, _ in entries] == named, lock.name
        assert named, lock.name
