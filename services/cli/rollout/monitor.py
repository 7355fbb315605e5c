"""Follows a rollout of several jobs until it ended or waits for a person, and says why it failed."""

import asyncio
import time
from collections.abc import Iterable

from schemas.projections import Query
from schemas.rollout_answers import RolloutAnswer, RolloutMemberLine
from services.cli.deployment.display import GroupRow, RolloutDisplay, health_rows
from services.cli.deployment.monitor import (
    FAILURES_MAX,
    POLL_INTERVAL_S,
    STANDSTILLS,
    failure_texts,
    query_deployment,
    stands_still,
)
from services.cli.runtime.bus_client import query_view
from services.cli.runtime.output import CommandOutput, short_id
from shared.bus.connection.public_client import Client

#: Pause between queries, as a multiple of the time that a query takes.
_PAUSE_FACTOR = 5
#: Allocations among which failed ones are looked for.
_SHOWN = 1_000


async def query_rollout(client: Client, rollout_id: str, min_seq: int = 0) -> RolloutAnswer:
    """Query a rollout by its id, a unique prefix, or its name."""
    return await query_view(client, "rollout", RolloutAnswer, Query(id=rollout_id, min_seq=min_seq))


def outcome_of(answer: RolloutAnswer) -> str:
    """Return `successful`, `failed`, `cancelled` or `waiting`; empty: it goes on."""
    if answer.rollout.status != "running":
        return answer.rollout.status
    open_members = [one for one in answer.members if one.status in {"running", "paused", "waiting"}]
    stands = any(stands_still(wait) for one in open_members for wait in one.waits)
    return "waiting" if stands and not any(map(_is_moving, open_members)) else ""


def _is_moving(member: RolloutMemberLine) -> bool:
    """Whether a member goes on without a person, capacity or another member."""
    waits = STANDSTILLS | {"held", "rollout"}
    return any(one.why not in waits for one in member.waits) or not member.reason


def exit_code(answer: RolloutAnswer) -> int:
    """0: successful; 2: it goes on, after a person acted or capacity came; 1: failed or cancelled."""
    return {"successful": 0, "waiting": 2, "": 2}.get(outcome_of(answer), 1)


async def follow_rollout(
    client: Client, out: CommandOutput, rollout_id: str, min_seq: int = 0
) -> RolloutAnswer:
    """Show a rollout until it is settled. Returns the last answer."""
    answer = await query_rollout(client, rollout_id, min_seq)
    line = answer.rollout
    title = f"rollout {short_id(line.id)} {line.name!r}"
    if not out.is_live:
        out.progress(title)
    with RolloutDisplay(out, title) as picture:
        while True:
            outcome = outcome_of(answer)
            head = f"{answer.rollout.done}/{len(answer.members)} jobs done"
            picture.show(head, member_rows(answer.members), outcome)
            if outcome:
                return answer
            began = time.monotonic()
            await asyncio.sleep(POLL_INTERVAL_S)
            answer = await query_rollout(client, line.id)
            await asyncio.sleep(min(_PAUSE_FACTOR * (time.monotonic() - began), 1.0))


def member_rows(members: Iterable[RolloutMemberLine]) -> list[GroupRow]:
    """The groups of all members, each with its job."""
    rows: list[GroupRow] = []
    for one in members:
        if one.deployment is None:
            rows.append(GroupRow(one.job, one.status, 1, ((1, "green"),)))
            continue
        for row in health_rows(one.deployment):
            text = f"{row.text}, waiting" if one.status == "waiting" else row.text
            rows.append(row._replace(name=f"{one.job}.{row.name}", text=text))
    return rows


async def member_failures(client: Client, answer: RolloutAnswer) -> list[str]:
    """Why allocations of members failed, of some of them."""
    found: list[str] = []
    for one in answer.members:
        line = one.deployment
        if line is not None and any(group.unhealthy for group in line.groups.values()):
            deployment = await query_deployment(client, line.id, answer.seq, _SHOWN)
            found += await failure_texts(client, deployment)
    return found[:FAILURES_MAX]


def print_outcome(out: CommandOutput, answer: RolloutAnswer, failures: Iterable[str] = ()) -> None:
    """Print how a rollout ended, or what its members wait for."""
    line, outcome = answer.rollout, outcome_of(answer)
    for text in failures:
        out.line(text, "red")
    style = {"successful": "green", "waiting": "yellow"}.get(outcome, "red")
    out.line(f"rollout {short_id(line.id)}: {line.description}", style if outcome else "")
    for one in answer.members:
        if one.status == "rolled_back":
            out.line(f"{one.job}: rolled back to version {one.before}", "yellow")
        elif one.status == "stopped" and line.status == "failed":
            out.line(f"{one.job}: stopped, it was new", "yellow")
        elif one.reason and line.status == "running":
            out.line(f"{one.job}: {one.reason}")
    if any(wait.why == "promotion" for one in answer.members for wait in one.waits):
        out.line(f"caravan rollout promote {short_id(line.id)} replaces the old allocations")
