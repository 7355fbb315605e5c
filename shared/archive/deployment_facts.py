"""Rows of the tables `deployments` and `rollouts`.

One for each event of a deployment and each group that it names; one for each member of a rollout that starts, and one
for the end of the rollout.
"""

from collections.abc import Iterator

from schemas.allocations import AllocationsHealthChanged, HealthCount
from schemas.base import DeploymentKey, Event, RolloutKey
from schemas.deployments import (
    DeploymentEnded,
    DeploymentHeld,
    DeploymentPaused,
    DeploymentPromoted,
    DeploymentReleased,
    DeploymentResumed,
    DeploymentSized,
    DeploymentStarted,
)
from schemas.gates import DeploymentGated, GateChanged, WindowChanged
from schemas.jobs import JobRegistered
from schemas.rollouts import RolloutEnded, RolloutStarted
from shared.core.state.gates import thousandths_text
from shared.core.state.ids import deployment_id, rollout_id
from shared.core.state.tables.deployments import paced_groups

Row = dict[str, object]
_NUMBERS = ("version", "desired", "canaries", "healthy", "unhealthy", "reverted_to")
_ROLLOUT_NUMBERS = ("place", "version", "before")


def deployment_facts(event: Event) -> Iterator[Row]:
    """Make the rows of one event; of one that is about no deployment none."""
    match event:
        case JobRegistered(deploys=True):
            key = DeploymentKey(event.evaluation)
            cause = "revert" if event.reverted_from >= 0 else "submit"
            for group, _ in paced_groups(event.groups):
                size = {"desired": group.count, "canaries": 0}
                yield _started(key, event, cause, group_name=group.name, **size)
        case DeploymentStarted():
            for one in event.groups:
                size = {"desired": one.desired_total, "canaries": one.desired_canaries}
                yield _started(event.key, event, event.cause, group_name=one.name, **size)
        case DeploymentSized():
            yield _row(
                event.key,
                "sized",
                group_name=event.group,
                desired=event.desired_total,
                canaries=event.desired_canaries,
            )
        case AllocationsHealthChanged():
            yield from map(_counted, event.counts)
        case DeploymentPromoted():
            for name in event.groups:
                yield _row(
                    event.key, "promoted", status="running", group_name=name, reason=event.by
                )
        case DeploymentPaused():
            yield _row(event.key, "paused", status="paused", reason=event.reason or None)
        case DeploymentResumed():
            yield _row(event.key, "resumed", status="running")
        case DeploymentEnded():
            yield _row(
                event.key,
                "ended",
                status=event.status,
                reason=event.reason or None,
                reverted_to=event.reverted_to,
            )
        case _:
            yield from _gate_facts(event)


def rollout_facts(event: Event) -> Iterator[Row]:
    """Make the rows of one event; of one that is about no rollout none."""
    match event:
        case RolloutStarted():
            for place, one in enumerate(event.members):
                yield _rollout_row(
                    event.key,
                    "started",
                    status="running",
                    name=event.name,
                    ordering=event.order,
                    place=place,
                    job_id=one.job_id,
                    version=one.version,
                    before=one.before,
                )
        case RolloutEnded():
            yield _rollout_row(
                event.key,
                "ended",
                status=event.status,
                cause=event.cause,
                reason=event.reason or None,
            )
        case _:
            return


def _gate_facts(event: Event) -> Iterator[Row]:
    """Make the rows of what holds a deployment, and of its gates."""
    match event:
        case DeploymentHeld():
            yield _row(event.key, "held", status="held", cause=event.cause, reason=event.reason)
        case DeploymentReleased():
            yield _row(
                event.key, "released", status="released", cause=event.cause, reason=event.reason
            )
        case DeploymentGated():
            names = [gate.name for gate in event.gates] + [one.cron for one in event.windows]
            yield _row(event.key, "gated", reason=", ".join(names))
        case GateChanged():
            value = "silent" if event.value is None else thousandths_text(event.value)
            yield _row(event.key, "gate", reason=f"{event.gate} {event.status}, {value}")
        case WindowChanged():
            yield _row(event.key, "window", reason="open" if event.is_open else "closed")
        case _:
            return


def _counted(count: HealthCount) -> Row:
    return _row(
        count.deployment,
        "health",
        group_name=count.group,
        healthy=count.healthy,
        unhealthy=count.unhealthy,
    )


def _started(
    key: DeploymentKey, event: JobRegistered | DeploymentStarted, cause: str, **values: object
) -> Row:
    return _row(
        key,
        "started",
        status="running",
        job_id=event.job_id,
        version=event.version,
        cause=cause,
        **values,
    )


def _row(key: DeploymentKey, what: str, **values: object) -> Row:
    numbers = dict.fromkeys(_NUMBERS, -1)
    return {"key": key, "id": deployment_id(key), "what": what, **numbers, **values}


def _rollout_row(key: RolloutKey, what: str, **values: object) -> Row:
    numbers = dict.fromkeys(_ROLLOUT_NUMBERS, -1)
    return {"key": key, "id": rollout_id(key), "what": what, **numbers, **values}
