"""Roles do today what they did when these clusters ran, byte for byte: names may change, decisions may not.

Each tape is what one role of a real cluster was given (`CARAVAN_TAPE`, docs/profiling.md): `demo` is `caravan demo`,
`story` a cluster of three nodes with updates, drains, preemption, resources, a lost node, and roles killed and started
again. `digests.json` holds how many steps and effects each has, and the digest of the effects. `just bless` writes
it anew only for tapes that it does not know yet: to change one on purpose, delete its line first.
"""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench.report.tape_replay import (ROLES, replay_tape)
from bench.report.tape_reader import read_tape

TAPES = Path(__file__).parent / "tapes"
EXPECTED = TAPES / "digests.json"
NAMES = sorted(str(path.relative_to(TAPES)) for path in TAPES.glob("*/*.tape.gz"))

#: Came after the tapes were recorded; their unit tests and the simulated world have their steps.
LATER = {"timekeeper", "keeper"}


def of(name: str) -> dict[str, Any]:
    """Play a tape, and say what came of it."""
    one = replay_tape(TAPES / name)
    return {"steps": one.steps, "effects": one.effects_count, "digest": one.effects}


def expected() -> dict[str, dict[str, Any]]:
    """Read what each tape must give."""
    return json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}


if os.environ.get("CARAVAN_BLESS") == "1":
    known = expected()
    known |= {name: of(name) for name in NAMES if name not in known}
    lines = [f'  "{name}": {json.dumps(known[name])}' for name in NAMES]
    EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def test_every_role_is_on_a_tape() -> None:
    """Each tape has its line, each line its tape, and no role is left out."""
    assert list(expected()) == NAMES
    for story in ("demo", "story"):
        found = {read_tape(TAPES / name)[0].role for name in NAMES if name.startswith(story)}
        assert found == set(ROLES) - LATER


def test_something_is_compared() -> None:
    """Tapes without steps, and roles that do nothing, would agree with everything."""
    assert all(one["steps"] > 0 and one["effects"] > 0 for one in expected().values())


@pytest.mark.parametrize("name", NAMES)
def test_a_role_has_the_effects_that_it_had(name: str) -> None:
    """The same steps give the same effects, as wire bytes."""
    assert of(name) == expected()[name]


@pytest.mark.parametrize("name", NAMES)
def test_no_machine_and_no_class_stands_on_a_tape(name: str) -> None:
    """A tape is plain: no module of ours, and no folder of the machine that recorded it."""
    data = gzip.decompress((TAPES / name).read_bytes())
    # Brackets, as in tests/tidy: this line is no such path.
    for word in ("/w[o]rk/", "/r[o]ot/", "/h[o]me/", "services.", "shared."):
        assert word.replace("[", "").replace("]", "").encode() not in data
