"""Rows of the table `rollouts`: one for each member of a rollout that starts, and one for its end."""

from collections.abc import Iterator

from schemas.base import Event
from schemas.rollouts import RolloutEnded, RolloutStarted
from shared.core.state.ids import rollout_id

Row = dict[str, object]


def rollout_facts(event: Event) -> Iterator[Row]:
    """Make the rows of one event; of one that is about no rollout none."""
    match event:
        case RolloutStarted():
            for place, one in enumerate(event.members):
                yield {
                    "key": event.key,
                    "id": rollout_id(event.key),
                    "what": "started",
                    "status": "running",
                    "name": event.name,
                    "ordering": event.order,
                    "place": place,
                    "job_id": one.job_id,
                    "version": one.version,
                    "before": one.before,
                }
        case RolloutEnded():
            yield {
                "key": event.key,
                "id": rollout_id(event.key),
                "what": "ended",
                "status": event.status,
                "cause": event.cause,
                "reason": event.reason or None,
                "place": -1,
                "version": -1,
                "before": -1,
            }
        case _:
            return
