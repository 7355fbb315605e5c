"""Decisions change only with CORE_VERSION: what the fixed worlds decide stands beside the version that decided it.

`decisions.json` holds a digest by core version and world. `CARAVAN_BLESS=1` records a version that is missing and
rewrites none: decisions that are meant to change are another core version, so raise it first.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from schemas.envelope import CORE_VERSION
from schemas.policy import DrainNode
from shared.core.decide import route
from shared.core.scheduling.model import Proposal
from tests import builders
from tests.golden.fixed_worlds import POLICIES, FixedWorld, decided

EXPECTED = Path(__file__).parent / "decisions.json"

Decided = dict[str, dict[str, Any]]


def expected() -> dict[str, Decided]:
    """Read what each version decided."""
    return json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}


def bless(known: dict[str, Decided], version: str) -> dict[str, Decided]:
    """Add a version that is missing; those that are known stay as they are."""
    return known if version in known else {**known, version: decided()}


if os.environ.get("CARAVAN_BLESS") == "1":
    EXPECTED.write_text(json.dumps(bless(expected(), CORE_VERSION), indent=2) + "\n")


def test_decisions_are_those_of_their_version() -> None:
    """The fixed worlds decide as this core version did when it was recorded.

    If this fails because decisions were meant to change, raise CORE_VERSION, then `just bless`.
    """
    assert CORE_VERSION in expected(), "`just bless` records what this version decides"
    assert decided() == expected()[CORE_VERSION]


def test_another_decision_changes_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that places nothing, and a drain that is ignored, are seen in the digest."""
    usual = FixedWorld(2).run()
    with monkeypatch.context() as patch:
        patch.setattr(builders, "place", lambda *_args, **_kwargs: Proposal())
        assert FixedWorld(2).run() != usual
    table = {**route.DECIDERS, DrainNode: lambda *_args: []}
    monkeypatch.setattr(route, "DECIDERS", table)
    assert FixedWorld(2).run() != usual


def test_the_fixed_worlds_decide_much() -> None:
    """Placements, cuts, evictions, refusals, losses and collections are among what is compared."""
    worlds = [FixedWorld(seed) for seed in POLICIES]
    for world in worlds:
        world.run()
    kinds = set().union(*(world.kinds for world in worlds))
    assert kinds >= {
        "plan.committed",
        "plan.refused",
        "job.registered",
        "job.stopped",
        "submission.refused",
        "operator.refused",
        "evaluations.woken",
        "reservations.changed",
        "allocations.displaced",
        "allocations.collected",
        "nodes.status_changed",
        "node.drain_changed",
        "capacity.freed",
    }


def test_a_known_version_is_never_blessed_again() -> None:
    """Blessing adds a missing version and leaves every recorded one."""
    known = {"0.0.1": {"seed-1": {"facts": 1, "digest": "x"}}}
    assert bless(known, "0.0.1") == known
    added = bless(known, "0.0.2")
    assert added["0.0.1"] == known["0.0.1"]
    assert set(added["0.0.2"]) == {f"seed-{seed}" for seed in POLICIES}
