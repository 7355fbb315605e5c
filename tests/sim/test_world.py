"""The simulated world: every role under every fault, the same for the same seed, and planted bugs are found."""

import os
import subprocess
import sys

import pytest

from shared.sim.check import PROOF_SEEDS_MIN, run_check
from shared.sim.findings import INVARIANTS
from shared.sim.mutants import MUTANTS
from shared.sim.weather import FAULTS
from shared.sim.world import Outcome, World

pytestmark = pytest.mark.sim

SEEDS = 12
#: Seeds within which `caravan sim check --mutant` must find each; the tests stop at the first that does.
MUTANT_SEEDS_MAX = 200

ONE_WORLD = "from shared.sim.world import World; print(World(3, trace=True).run().digest)"


def test_worlds_hold_and_exercise_everything() -> None:
    """A handful of seeds holds every invariant, and leaves hardly a fault and no invariant unexercised."""
    result = run_check(SEEDS)
    assert result.failed == ()
    assert {name for name in INVARIANTS if not result.checks[name]} == set()
    # Rare ones need more seeds than a quick test has; a run of PROOF_SEEDS_MIN fails without them.
    assert len([kind for kind in FAULTS if not result.faults[kind]]) <= 2


def test_a_seed_is_one_story() -> None:
    """The same seed makes the same trace, another one another."""
    first, again, other = (World(seed, trace=True).run() for seed in (3, 3, 4))
    assert first.digest == again.digest != other.digest
    assert first.trace


def test_hidden_order_changes_nothing() -> None:
    """Two processes with different hash seeds live the same story."""
    digests = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", ONE_WORLD],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1


@pytest.mark.parametrize("mutant", sorted(MUTANTS))
def test_a_planted_bug_is_found(mutant: str) -> None:
    """Each planted bug breaks an invariant within the seeds that a check is given."""
    result = run_check(MUTANT_SEEDS_MAX, mutant=mutant)
    assert result.found
    assert result.ok


def test_a_planted_bug_is_gone_afterwards() -> None:
    """A world with a planted bug leaves nothing behind for the next."""
    before = World(5).run()
    World(5, mutant="wall-clock-in-core").run()
    assert World(5).run() == before


def test_a_failing_seed_tells_its_story() -> None:
    """A look at one seed hands its trace over, one line a transition, up to where it broke."""
    heard: list[Outcome] = []
    result = run_check(1, 1, "ack-before-append", heard.append)
    (told,) = heard
    assert (result.seed, told.invariant) == (1, "no_acknowledged_job_lost")
    assert any("Reply" in line for line in told.trace)


def test_an_unknown_mutant_is_an_error() -> None:
    """A misspelt mutant is not a passed check."""
    with pytest.raises(KeyError):
        run_check(1, mutant="no-such-bug")


def test_what_was_never_exercised_fails_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run long enough to prove something fails where a fault never happened."""
    monkeypatch.setattr("shared.sim.check.one_world", lambda seed, _mutant: Outcome(seed=seed))
    result = run_check(PROOF_SEEDS_MIN)
    assert {one.invariant for one in result.failed} >= {"crash was never exercised"}
    assert not result.ok
