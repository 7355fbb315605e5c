"""What the tree may say: it speaks of the project alone, and every shipped file says what it decides."""

import ast
import re

import pytest

from tests.tidy.tree import ROOT, files, report, shipped

#: Brackets keep these patterns from finding themselves.
MACHINE = re.compile(r"/w[o]rk/|/r[o]ot/|/h[o]me/\w|/t[m]p/\w+_jobs|/U[s]ers/")
REGISTRY = re.compile(
    r"ind[e]x-url|https?://[a-z.]*(py[p]i|pyth[o]nhosted|npm[j]s|crates|deb[i]an|maven|g[o]lang)\."
)
MAKERS = re.compile(
    r"cl[a]ude|anthr[o]pic|ch[a]tgpt|op[e]nai|c[o]pilot|\bLL[M]s?\b|AI (as)sistant|sub[a]gent|co-auth[o]red-by",
    re.IGNORECASE,
)
#: Words that hide the subject of a sentence: name it.
RIDDLES = re.compile(
    r"\b(nobody|somebody|anybody|whoever|whomever|who is before|t[ao]kes? note|took note"
    r"|ha(?:s|ve) (?:its|their) price|such a one|(?:is|are|was|were) told|what is asked for"
    r"|asked too much|shall|goes on|for ever|those who|makes? no sense|whose time has come)\b",
    re.IGNORECASE,
)
#: Names, not words: Unix's user `nobody`, ids and logins of tests. Taken out of a line before it is searched.
RIDDLE_NAMES = re.compile(r"[`'\"]nobody[`'\"]|\"nobody:secret\"|\"nobody-here\"|\"x, nobody\"")
#: Lines with such a word, in tests and in all else: these numbers only go down.
RIDDLES_MAX = {"tests": 0, "product": 0}
#: The changelog's past is not rewritten, the map of renames quotes old names, a licence is the law's English.
RIDDLES_EXEMPT = ("CHANGELOG.md", "LICENSE", "docs/renames.md", "tests/tidy/", "tests/golden/")
BINARY = (".png", ".gif", ".svg", ".ico", ".gz", ".parquet", ".bin", ".woff2")


def lines_with(pattern: re.Pattern[str], names: re.Pattern[str] | None = None) -> list[str]:
    """Find the lines of all text files that match beside these names."""
    found = []
    for name in files():
        if not name.endswith(BINARY):
            text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
            for number, line in enumerate(text.splitlines(), start=1):
                if pattern.search(names.sub("", line) if names else line):
                    found.append(f"{name}:{number} {line.strip()[:120]}")
    return found


def test_no_machine_is_named() -> None:
    """No path of one person's machine is in the tree."""
    found = lines_with(MACHINE)
    assert not found, report(found)


def test_no_registry_is_named() -> None:
    """Where packages come from is the installing machine's choice: no registry host, no index option."""
    found = lines_with(REGISTRY)
    assert not found, report(found)


def test_the_project_speaks_of_itself() -> None:
    """Tools that helped to write a line are not named in it."""
    found = lines_with(MAKERS)
    assert not found, report(found)


def test_shipped_modules_say_what_they_decide() -> None:
    """Every module of the three packages opens with a docstring."""
    silent = [one.path for one in shipped() if one.text.strip() and not ast.get_docstring(one.tree)]
    assert not silent, report(silent)


@pytest.mark.parametrize("part", RIDDLES_MAX)
def test_sentences_name_their_subject(part: str) -> None:
    """Code and docs say who does what: riddles with nobody, whoever, "is told" are counted and only get fewer."""
    found = [
        line
        for line in lines_with(RIDDLES, RIDDLE_NAMES)
        if not line.startswith(RIDDLES_EXEMPT) and line.startswith("tests/") is (part == "tests")
    ]
    assert len(found) <= RIDDLES_MAX[part], report(found)
