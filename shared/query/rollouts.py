"""Rollouts of several jobs as `query.rollout(s)` shows them, and why each member waits. Computed from the state."""

import numpy as np

from schemas.base import JobId, RolloutKey
from schemas.rollout_answers import RolloutLine, RolloutMemberLine
from shared.core.state.ids import (
    ROLLOUT_SALT,
    deployment_id,
    match_prefix,
    rollout_id,
    shown_ids,
)
from shared.core.state.state import State
from shared.core.state.tables.deployments import Deployment
from shared.core.state.tables.rollouts import MemberProgress, RolloutRecord
from shared.errors import CommandInvalid
from shared.query.blocked_shapes import BlockedShapes
from shared.query.deployments import deployment_line, deployment_waits

#: Ids that are named where one beginning fits several.
_SHOWN = 5


def find_rollout(state: State, text: str) -> RolloutRecord:
    """Find a rollout by its id, a unique prefix of it, or its name: the newest one. Raises CommandInvalid."""
    if not text:
        raise CommandInvalid("invalid", "rollout id, id prefix or name required")
    table = state.rollouts
    named = [one for one in table.by_key.values() if one.name == text]
    if named:
        return named[-1]
    keys = np.fromiter(table.by_key, dtype=np.int64, count=len(table.by_key))
    try:
        found = keys[match_prefix(keys, text, ROLLOUT_SALT)].tolist()
    except ValueError:
        found = []
    if not found:
        raise CommandInvalid("not_found", f"there is no rollout {text!r}")
    if len(found) > 1:
        shown = ", ".join(shown_ids(np.array(found[:_SHOWN], dtype=np.int64), ROLLOUT_SALT))
        raise CommandInvalid("ambiguous", f"{len(found)} rollouts begin with {text!r}: {shown}")
    return table.by_key[RolloutKey(found[0])]


def listed_rollouts(
    state: State, job_id: str, status: str, prefix: str = ""
) -> list[RolloutRecord]:
    """List rollouts, newest first. `job_id`, `status`: with this job, with this status; empty: all.

    `prefix`: of their names or ids.
    """
    digits = prefix.lower()
    return [
        one
        for one in reversed(state.rollouts.by_key.values())
        if (not job_id or one.member(JobId(job_id)))
        and (not status or one.status == status)
        and (one.name.startswith(prefix) or rollout_id(one.key).startswith(digits))
    ]


def rollout_line(one: RolloutRecord) -> RolloutLine:
    """One rollout in one line."""
    return RolloutLine(
        id=rollout_id(one.key),
        key=one.key,
        name=one.name,
        order=one.order,
        status=one.status,
        description=one.reason or _running_text(one),
        cause=one.cause,
        jobs=tuple([member.job_id for member in one.members]),
        done=sum(member.done for member in one.members),
        create_seq=one.create_seq,
        modify_seq=one.modify_seq,
    )


def _running_text(one: RolloutRecord) -> str:
    done = sum(member.done for member in one.members)
    return f"Rollout is running, {done} of {len(one.members)} jobs done"


def member_lines(state: State, one: RolloutRecord) -> tuple[RolloutMemberLine, ...]:
    """The members of a rollout, in order."""
    shapes = BlockedShapes(state)
    return tuple([_member_line(state, one, member, shapes) for member in one.members])


def _member_line(
    state: State, one: RolloutRecord, member: MemberProgress, shapes: BlockedShapes
) -> RolloutMemberLine:
    deployment = state.deployments.by_key.get(member.deployment)
    waits = () if deployment is None else deployment_waits(state, deployment, shapes)
    return RolloutMemberLine(
        job=member.job_id,
        version=member.version,
        before=member.before,
        status=_member_status(one, member, deployment),
        deployment_id=deployment_id(member.deployment) if member.deployment else "",
        reason="; ".join(f"{wait.group}: {wait.reason}" for wait in waits),
        deployment=None if deployment is None else deployment_line(deployment),
        waits=waits,
    )


def _member_status(
    one: RolloutRecord, member: MemberProgress, deployment: Deployment | None
) -> str:
    if not member.is_changed:
        return "unchanged"
    if one.status == "failed":
        return "rolled_back" if member.before >= 0 else "stopped"
    if deployment is None:
        return "successful" if member.done else one.status
    return "waiting" if deployment.is_held else deployment.status
