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


def missing_paths(text: str) -> list[str]:
    """Return the paths in backticks that are not in the tree; NAME stands for any name."""
    named = re.findall(r"`([a-z][\w./]*/[\w./]*|[\w]+\.toml)`", text)
    return [path for path in named if "NAME" not in path and not (ROOT / path).exists()]


def test_checklists_name_files_that_exist() -> None:
    """Every path of docs/checklists/ exists; a file that is gone is found."""
    pages = [name for name in files() if name.startswith("docs/checklists/")]
    assert len(pages) == 15
    missing = [
        f"{name}: {path}"
        for name in pages
        for path in missing_paths((ROOT / name).read_text(encoding="utf-8"))
    ]
    assert not missing, report(missing)
    assert missing_paths("see `shared/core/gone.py`, `services/NAME/`") == ["shared/core/gone.py"]


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


#: Python files of the standard library that a text names.
FOREIGN_FILES = frozenset(
    {"threading.py", "concurrent/futures/thread.py", "weakref.py", "_weakrefset.py"}
)


def stale_files(text: str, known: frozenset[str]) -> list[str]:
    """Return the Python files that a text names and `known`, with all ends of its paths, lacks."""
    named = re.findall(r"(?<![\w/.*-])((?:[\w-]+/)*[\w-]+\.py)\b", text)
    return [one for one in named if one not in known and one not in FOREIGN_FILES]


def test_texts_name_files_that_exist() -> None:
    """A docstring or page that points to a Python file points to one of the tree; a stale pointer is found."""
    known = frozenset(
        "/".join(parts[at:])
        for parts in (name.split("/") for name in files())
        for at in range(len(parts))
    )
    stale = [
        f"{name}: {one}"
        for name in files()
        if name.endswith((".py", ".md")) and not name.startswith(STALE_ALLOWED)
        for one in stale_files((ROOT / name).read_text(encoding="utf-8"), known)
    ]
    assert not stale, report(stale)
    assert stale_files("Next: `gone.py`, core/gone.py, role.py.", known) == [
        "gone.py",
        "core/gone.py",
    ]


#: The past, the map of old names, what is only proposed, and tests that make up files.
STALE_ALLOWED = ("CHANGELOG.md", "docs/renames.md", "docs/adr/0031-", "tests/")
