"""Old logs replay for ever, on every machine, to the same state, and today's release decides in them as it did.

Each golden log is what one simulated storm wrote (`v1-<core version>-seed-<n>.jsonl.gz`), up to its last checkpoint.
`just bless` records those of this core version that are missing and rewrites none: a release that decides otherwise
has another core version, and its own logs. Only before a first release may a log of a changed mind be deleted.
"""

import json
import os
import subprocess
import sys
from itertools import accumulate
from operator import or_
from pathlib import Path

import numpy as np
import pytest

from schemas.envelope import CORE_VERSION
from shared.core.scheduling.explain import verify_decisions as core
from shared.core.scheduling.model import Proposal
from shared.core.state.snapshots.table_codecs import (
    LATER_TABLES,
    OLDER_RELEASES,
    OLDER_SHAPES,
    TABLE_CODECS,
)
from shared.sim.world.world import SimulatedWorld
from tests.golden.replay_log import read_log, told, write_log

HERE = Path(__file__).parent
LOGS = HERE / "logs"
#: Both have foreign records, lost nodes and plans in parts; in the first a plan was refused.
SEEDS = (2, 5)
NAMES = [f"v1-{CORE_VERSION}-seed-{seed}.jsonl.gz" for seed in SEEDS]

if os.environ.get("CARAVAN_BLESS") == "1":
    LOGS.mkdir(exist_ok=True)
    for seed, name in zip(SEEDS, NAMES, strict=True):
        if not (LOGS / name).exists():
            world = SimulatedWorld(seed)
            assert not world.run().invariant
            written = world.context.bus.log.records
            proven = [at for at, (subject, _) in enumerate(written) if "checkpoint" in subject]
            write_log(LOGS / name, written[: proven[-1] + 1])

GOLDEN = sorted(path.name for path in LOGS.glob("*.jsonl.gz"))


def in_process(name: str, **environment: str) -> dict[str, object]:
    """Replay a golden log in a process of its own."""
    command = [sys.executable, "-m", "tests.golden.replay_log", str(LOGS / name)]
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        cwd=HERE.parents[1],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def newer_instructions() -> str:
    """Name what numpy would use here beyond its baseline."""
    core_of_numpy = np._core._multiarray_umath
    found = core_of_numpy.__cpu_features__
    return " ".join(name for name in core_of_numpy.__cpu_dispatch__ if found.get(name))


def test_this_version_has_golden_logs() -> None:
    """The present core version stands in tests/golden/logs with what it decided."""
    assert [name for name in NAMES if name not in GOLDEN] == [], "`just bless` records them"


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_log_proves_itself_on_any_machine(name: str) -> None:
    """Hash seed and processor change nothing: state, checkpoints and decisions of a log are the same everywhere."""
    one = in_process(name, PYTHONHASHSEED="1", NPY_DISABLE_CPU_FEATURES=newer_instructions())
    two = in_process(name, PYTHONHASHSEED="2")
    assert one == two
    assert one["checkpoints"] > 2
    assert one["foreign"] > 0


@pytest.mark.parametrize("name", [name for name in NAMES if name in GOLDEN])
def test_this_version_decides_as_it_did(name: str) -> None:
    """Every plan of a golden log comes out of `place` again, allocation by allocation.

    If this fails because decisions were meant to change, they are another core version: raise it, then `just bless`.
    """
    found = told(LOGS / name)
    assert found["differences"] == []
    assert found["equal"] == found["checked"]
    assert found["checked"] > 30
    # Not one plan is left out as another release's.
    assert found["other_version"] == 0


def test_another_decision_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `place` makes otherwise is named with both plans, so the comparison above can fail."""
    monkeypatch.setattr(core, "place", lambda *_args, **_kwargs: Proposal())
    records = read_log(LOGS / NAMES[0])
    found = core.verify_decisions(lambda: records)
    assert found.checked > len(found.differences) > 30
    assert found.differences[0].recorded.startswith("place ")
    assert found.differences[0].decided == "0 lines"


def test_plans_of_other_versions_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that another release made is counted, not compared: that release would decide it otherwise."""
    monkeypatch.setattr(core, "CORE_VERSION", "0.0.0")
    records = read_log(LOGS / NAMES[0])
    found = core.verify_decisions(lambda: records)
    assert found.checked == 0
    assert found.other_version > 30


#: release -> fingerprints of the tables whose format is new in it; the others are as in the release before.
NEW_SHAPES = {
    "0.1.0": {
        "policy": "ba5e7a9c8380786a",
        "jobs": "a1032e3ab2d7be7c",
        "fleet": "7284cccb488963fe",
        "evaluations": "8539fc6951dbd050",
        "allocations": "fe8ec7e7780fa1c6",
        "reservations": "95747359014c76ba",
    },
    "0.2.0": {
        "jobs": "3306d0cfecca2399",
        "fleet": "bc5d6f294c583fa0",
        "allocations": "cb90e28c7b6ad995",
        "deployments": "b97a5e7290064d87",
        "launches": "2cdf1286fa617832",
        "rollouts": "952289a451f171c4",
    },
    "0.3.0": {
        "jobs": "8924855c6684e792",
        "allocations": "c6953c290d4fcc13",
    },
    "0.4.0": {"policy": "253f463b31ca090a"},
    "0.5.0": {"deployments": "b56f1d694c47e1ae"},
    "0.6.0": {},
    "0.7.0": {"variables": "df0c2a0b8620dcd1"},
    "0.8.0": {"variable_locks": "d63951c9b051a9f4"},
    "0.9.0": {"signing_keys": "48ba9c5dfe461982"},
    "0.10.0": {},
    "0.11.0": {
        "jobs": "1f1dabd18d68a477",
        "fleet": "1ddd186e04f3d2da",
        "allocations": "c7f68dbf9e292cb6",
        "claims": "abd39a9128ec6252",
    },
}
#: release -> format of each table that its snapshots have.
SHAPES = dict(zip(NEW_SHAPES, accumulate(NEW_SHAPES.values(), or_), strict=True))


def test_formats_are_the_same_in_every_process() -> None:
    """No address of an object and no order of a set is in what a fingerprint is made of."""
    assert not [name for name, codec in TABLE_CODECS.items() if " at 0x" in codec.described()]


@pytest.mark.parametrize("release", SHAPES)
def test_snapshots_of_older_releases_are_read(release: str) -> None:
    """Each table's format is that of the release, or one that reads it too: its snapshots are not passed over."""
    for name, shape in SHAPES[release].items():
        assert shape in {TABLE_CODECS[name].fingerprint(), *OLDER_SHAPES.get(name, ())}, name
    assert TABLE_CODECS.keys() - SHAPES[release].keys() <= LATER_TABLES
    assert release in OLDER_RELEASES
