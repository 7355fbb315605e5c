"""docs/attacks.md names tests that there are."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "attacks.md"


def test_every_named_test_is_there() -> None:
    """A page that promises a test promises one that runs, and no case from 37 to 42 is left out."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE.read_text(encoding="utf-8"))
    missing = [
        f"{path}::{name}"
        for path, name in named
        if f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")
    ]
    assert missing == []
    cases = {found.group(1) for _, name in named if (found := re.match(r"test_(\d\d)_", name))}
    assert cases == {"37", "38", "39", "40", "41", "42"}
