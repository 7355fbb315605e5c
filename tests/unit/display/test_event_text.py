"""Events in one line: with the state before them they speak of allocations and nodes by name."""

import msgspec
import pytest

from schemas.allocations import (
    AllocationsDisplaced,
    AllocationsHealthChanged,
    AllocationsReported,
)
from schemas.base import DeploymentKey, Event, JobId
from schemas.deployments import (
    DeploymentEnded,
    DeploymentGroup,
    DeploymentHeld,
    DeploymentPaused,
    DeploymentPromoted,
    DeploymentSized,
    DeploymentStarted,
)
from schemas.jobs import JobStabilityChanged, JobVersionTagged
from schemas.nodes import NodeDrainChanged, NodesStatusChanged, Pool, PoolDeclared
from schemas.variables import (
    KeyCreated,
    VariableDeleted,
    VariableLife,
    VariableRefused,
    VariablesShredded,
)
from shared.core.runtime.replica import Replica
from shared.core.state.ids import deployment_id, make_key
from shared.display import event_text
from tests.unit.view.test_view_variables import put
from tests.unit.view.view_story import Story


def story() -> tuple[Replica, tuple[int, ...]]:
    """A state in which a job of five stands on one node, and the rows of its allocations."""
    told = Story()
    told.node("n1")
    told.job("j", count=5)
    told.plan("j", (0, 0, 0, 0, 0))
    replica = Replica()
    for record in told.records:
        replica.apply(record)
    return replica, tuple(replica.state.allocations.rows_of(JobId("j")).tolist())


def test_reports_name_allocations_and_their_node() -> None:
    """Three by name for each status, and how many more; without a state they are counted."""
    replica, rows = story()
    event = AllocationsReported(nodes=(0,), numbers=(1,), rows=rows, statuses=(1, 1, 1, 1, 2))
    assert event_text.describe_event(event) == "4 running, 1 complete"
    told = event_text.describe_event(event, replica.state)
    assert told == "j.web[0], j.web[1], j.web[2] and 1 more running; j.web[4] complete on n1"


def test_rows_that_nobody_knows_are_shown_as_numbers() -> None:
    """A record that is not proven yet is described all the same."""
    replica, _ = story()
    event = AllocationsReported(nodes=(7,), numbers=(1,), rows=(99,), statuses=(1,))
    told = event_text.describe_event(event, replica.state)
    assert told == "allocation in row 99 running on node in row 7"


def test_what_operators_and_silence_do_is_told_by_name() -> None:
    """Drained, down, stopped: the node or the allocation that it befell; a pool with what it offers."""
    replica, rows = story()
    state = replica.state
    down = NodesStatusChanged(rows=(0,), status="down", reason="silent")
    assert event_text.describe_event(down, state) == "n1 down (silent)"
    drain = NodeDrainChanged(row=0, draining=False, deadline_ns=0)
    assert event_text.describe_event(drain, state) == "n1 drain ended"
    stopped = AllocationsDisplaced(rows=rows[:1])
    assert event_text.describe_event(stopped, state) == "j.web[0] stopped by an operator"
    pool = PoolDeclared(node_id="n1", pool=Pool(name="seat", amount=20_000))
    assert event_text.describe_event(pool) == "n1: seat 2"
    gone = msgspec.structs.replace(pool, node_id="", pool=Pool(name="seat"))
    assert event_text.describe_event(gone) == "the cluster: seat removed"


KEY = DeploymentKey(make_key(9, 0))
GROUP = DeploymentGroup(name="web", desired_total=5, desired_canaries=2)
SHORT = deployment_id(KEY)[:8]


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            DeploymentStarted(key=KEY, job_id=JobId("j"), version=2, groups=(GROUP,)),
            f"{SHORT} of j version 2: web 5 with 2 canaries",
        ),
        (
            DeploymentStarted(key=KEY, job_id=JobId("j"), version=2, cause="revert"),
            f"{SHORT} of j version 2, a revert: ",
        ),
        (
            DeploymentEnded(
                key=KEY,
                job_id=JobId("j"),
                version=2,
                status="failed",
                cause="unhealthy",
                reason="Failed due to unhealthy allocations",
                reverted_to=1,
            ),
            f"{SHORT} of j version 2 failed, back to version 1: Failed due to unhealthy allocations",
        ),
        (DeploymentPaused(key=KEY), SHORT),
        (DeploymentHeld(key=KEY, cause="gate", reason="shut", since_ns=1), f"{SHORT}: gate, shut"),
        (
            DeploymentPromoted(key=KEY, groups=("web", "db"), rows=(1, 2)),
            f"{SHORT}: web, db by operator, 2 allocations",
        ),
        (DeploymentSized(key=KEY, group="web", desired_total=4), f"{SHORT}: web 4"),
        (
            AllocationsHealthChanged(
                rows=(1, 2, 3), healths=(1, 1, 2), reasons=("", "", "task t failed")
            ),
            "2 allocations healthy; 1 allocation unhealthy (task t failed)",
        ),
        (
            AllocationsHealthChanged(rows=(1,), healths=(2,), source="operator"),
            "1 allocation unhealthy, by an operator",
        ),
        (
            JobStabilityChanged(request_id="r", job_id=JobId("j"), version=2, stable=False),
            "j version 2 is not stable",
        ),
        (
            JobVersionTagged(request_id="r", job_id=JobId("j"), version=2, name="good"),
            "j version 2 is named good",
        ),
    ],
)
def test_deployments_are_told_in_words(event: Event, text: str) -> None:
    """By the short id of the deployment, the job and what became of it."""
    assert event_text.describe_event(event) == text


def test_a_deployment_of_the_state_is_named_by_its_job() -> None:
    """The line of an event that names a deployment alone has its job and version."""
    told = Story()
    told.job("j")
    told.log(DeploymentStarted(key=KEY, job_id=JobId("j"), version=0, groups=(GROUP,)))
    replica = Replica()
    for record in told.records:
        replica.apply(record)
    line = event_text.describe_event(DeploymentPaused(key=KEY), replica.state)
    assert line == f"{SHORT} of j version 0"


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (put("app/db"), "app/db incarnation 1: 2 items, 10 B"),
        (VariableDeleted(path="app/db", incarnation=2), "app/db incarnation 2"),
        (
            VariablesShredded(
                lives=tuple(VariableLife(path="a", incarnation=n) for n in range(1, 6))
            ),
            "a incarnation 1, a incarnation 2, a incarnation 3 and 2 more",
        ),
        (
            VariableRefused(request_id="r", path="app/db", code="rate", reason="too often"),
            "app/db: rate: too often",
        ),
        (KeyCreated(key_id="00ff" * 4, public=b"p" * 32), "00ff00ff00ff00ff"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_variables_are_described_without_ciphertext(event: Event, text: str) -> None:
    """Path, life, count and size: what the log has in plain, and no more."""
    assert event_text.describe_event(event) == text
