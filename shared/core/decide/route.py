"""Routing: which function decides which command. Each module of this package lists its own; here they are one table."""

from collections.abc import Mapping
from itertools import chain
from typing import TypeVar

from schemas.base import Command, Event
from schemas.envelope import AnyCommand
from schemas.policy import BeginIncarnation, CollectGarbage
from shared.core.decide import (
    evaluations,
    host_volumes,
    operator,
    remotes,
    signing_keys,
    stateful_turns,
    variables,
)
from shared.core.decide.deciders import Deciders, TimedDeciders
from shared.core.decide.deployments import requests, rollouts
from shared.core.decide.garbage import LogTimeIndex, decide_garbage
from shared.core.decide.jobs import launches, submissions, version_marks
from shared.core.decide.nodes import drains, liveness, registration
from shared.core.decide.plans import claims, verify
from shared.core.state.state import State

D = TypeVar("D")


def _merge(*tables: Mapping[type[Command], D]) -> dict[type[Command], D]:
    """Make one table of several. A command in two of them is a defect."""
    rows = list(chain.from_iterable(table.items() for table in tables))
    merged = dict(rows)
    assert len(merged) == len(rows), sorted(command.__name__ for command, _ in rows)
    return merged


DECIDERS: Deciders = _merge(
    verify.DECIDERS,
    submissions.DECIDERS,
    liveness.DECIDERS,
    evaluations.DECIDERS,
    operator.DECIDERS,
    drains.DECIDERS,
    stateful_turns.DECIDERS,
    version_marks.DECIDERS,
    launches.DECIDERS,
    variables.DECIDERS,
    signing_keys.DECIDERS,
    claims.DECIDERS,
    host_volumes.DECIDERS,
    remotes.DECIDERS,
    # A transaction of its own: the applier puts it aside before it comes here.
    {BeginIncarnation: lambda _state, _command: []},
)
TIMED_DECIDERS: TimedDeciders = _merge(
    registration.TIMED_DECIDERS,
    evaluations.TIMED_DECIDERS,
    requests.TIMED_DECIDERS,
    rollouts.TIMED_DECIDERS,
    variables.TIMED_DECIDERS,
    signing_keys.TIMED_DECIDERS,
)


def decide(state: State, command: AnyCommand, now_ns: int, horizon: LogTimeIndex) -> list[Event]:
    """Decide one command against the state, which stands inside the transaction being written."""
    kind = type(command)
    decider = DECIDERS.get(kind)
    if decider is not None:
        return decider(state, command)
    if kind is CollectGarbage:
        return decide_garbage(state, horizon, now_ns, everything=True)
    return TIMED_DECIDERS[kind](state, command, now_ns)
