"""The timekeeper says when a deployment's clock has run out, by the instant that the table holds."""

from schemas.allocations import AllocationsHealthChanged, HealthCount
from schemas.base import DeploymentKey, Event, JobId
from schemas.deployments import (
    DeploymentDue,
    DeploymentEnded,
    DeploymentGroup,
    DeploymentHeld,
    DeploymentPaused,
    DeploymentPromoted,
    DeploymentReleased,
    DeploymentResumed,
    DeploymentStarted,
)
from services.timekeeper.due_heap import DueTime
from services.timekeeper.progress_deadlines import ProgressDeadlines
from shared.core.state.state import State

SECOND = 1_000_000_000
KEY = DeploymentKey(7)


def at(log_ns: int) -> DueTime:
    """Log time, where this machine's clock is far behind."""
    return DueTime(wall_ns=1, log_ns=log_ns)


def state_of(*events: Event) -> State:
    """A state with one deployment of two groups, web with a canary and db without."""
    state = State()
    groups = (
        DeploymentGroup(name="web", desired_total=2, desired_canaries=1, require_by_ns=10 * SECOND),
        DeploymentGroup(name="db", desired_total=1, require_by_ns=20 * SECOND),
    )
    started = DeploymentStarted(key=KEY, job_id=JobId("app"), version=0, groups=groups)
    for seq, event in enumerate((started, *events), start=1):
        state.evolve(event, seq)
    return state


def health(group: str, *, clock_s: int = 0) -> AllocationsHealthChanged:
    """One more healthy allocation of a group."""
    one = HealthCount(deployment=KEY, group=group, healthy=1, require_by_ns=clock_s * SECOND)
    return AllocationsHealthChanged(rows=(), healths=(), counts=(one,))


HELD = DeploymentHeld(key=KEY, cause="gate", reason="closed", since_ns=1)


def test_the_earliest_clock_of_what_is_missing_is_due() -> None:
    """Groups that have what they need have no clock; canaries that wait for a person have none either."""
    source = ProgressDeadlines()
    promoted = DeploymentPromoted(key=KEY, groups=("web",), rows=(), require_by_ns=(30 * SECOND,))
    for events, due_s in (
        ((), 10),
        ((health("web"),), 20),
        ((health("web"), health("db")), 0),
        ((health("web"), health("db"), promoted), 30),
        ((health("web"), promoted, health("web", clock_s=40)), 20),
        ((DeploymentPaused(key=KEY),), 0),
        (
            (
                DeploymentPaused(key=KEY),
                DeploymentResumed(key=KEY, groups=("web",), require_by_ns=(50 * SECOND,)),
            ),
            20,
        ),
        ((HELD,), 0),
        (
            (
                HELD,
                DeploymentReleased(
                    key=KEY,
                    cause="gate",
                    reason="open",
                    groups=("web",),
                    require_by_ns=(50 * SECOND,),
                ),
            ),
            20,
        ),
    ):
        state = state_of(*events)
        assert source.due_ns(state, KEY, 0) == due_s * SECOND
        assert list(source.keys(state)) == [KEY]
        for event in events:
            assert list(source.changed(state, event)) == [KEY]


def test_it_says_so_when_the_instant_has_come() -> None:
    """The command names the instant; before it, and of a deployment that ended or is unknown, nothing is said."""
    source = ProgressDeadlines()
    state = state_of()
    assert source.command(state, KEY, at(10 * SECOND - 1)) is None
    assert source.command(state, KEY, at(11 * SECOND)) == DeploymentDue(key=KEY, due_ns=10 * SECOND)
    assert source.command(state, DeploymentKey(8), at(11 * SECOND)) is None
    ended = DeploymentEnded(
        key=KEY, job_id=JobId("app"), version=0, status="failed", cause="operator"
    )
    state.evolve(ended, 9)
    assert source.command(state, KEY, at(11 * SECOND)) is None
    assert list(source.keys(state)) == []
