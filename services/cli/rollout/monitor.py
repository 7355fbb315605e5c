"""What a rollout is asked and how it is shown while the CLI follows it, and why it failed."""

from collections.abc import Iterable

from schemas.projections import Query
from schemas.rollout_answers import RolloutAnswer, RolloutMemberLine
from services.cli.deployment.display import GroupRow, health_rows
from services.cli.deployment.follow import Followable, print_end
from services.cli.deployment.monitor import (
    FAILURES_MAX,
    STANDSTILLS,
    deployment_failures,
    stands_still,
)
from services.cli.runtime.bus_client import query_view
from services.cli.runtime.output import CommandOutput, short_id
from shared.bus.connection.public_client import Client


async def query_rollout(client: Client, rollout_id: str, min_seq: int = 0) -> RolloutAnswer:
    """Query a rollout by its id, a unique prefix, or its name."""
    return await query_view(client, "rollout", RolloutAnswer, Query(id=rollout_id, min_seq=min_seq))


def outcome_of(answer: RolloutAnswer) -> str:
    """Return `successful`, `failed`, `cancelled` or `waiting`; empty: it continues."""
    if answer.rollout.status != "running":
        return answer.rollout.status
    open_members = [one for one in answer.members if one.status in {"running", "paused", "waiting"}]
    stands = any(stands_still(wait) for one in open_members for wait in one.waits)
    return "waiting" if stands and not any(map(_is_moving, open_members)) else ""


def _is_moving(member: RolloutMemberLine) -> bool:
    """Whether a member continues without a person, capacity or another member."""
    waits = STANDSTILLS | {"held", "rollout"}
    return any(one.why not in waits for one in member.waits) or not member.reason


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
            found += await deployment_failures(client, line.id, answer.seq)
    return found[:FAILURES_MAX]


def print_outcome(out: CommandOutput, answer: RolloutAnswer, failures: Iterable[str] = ()) -> None:
    """Print how a rollout ended, or what its members wait for."""
    line = answer.rollout
    print_end(out, "rollout", line, outcome=outcome_of(answer), failures=failures)
    for one in answer.members:
        if one.status == "rolled_back":
            out.line(f"{one.job}: rolled back to version {one.before}", "yellow")
        elif one.status == "stopped" and line.status == "failed":
            out.line(f"{one.job}: stopped, it was new", "yellow")
        elif one.reason and line.status == "running":
            out.line(f"{one.job}: {one.reason}")
    if any(wait.why == "promotion" for one in answer.members for wait in one.waits):
        out.line(f"caravan rollout promote {short_id(line.id)} replaces the old allocations")


ROLLOUT = Followable[RolloutAnswer](
    noun="rollout",
    query=query_rollout,
    id_of=lambda answer: answer.rollout.id,
    outcome_of=outcome_of,
    title=lambda answer: f"rollout {short_id(answer.rollout.id)} {answer.rollout.name!r}",
    progress=lambda answer: (
        f"{answer.rollout.done}/{len(answer.members)} jobs done",
        member_rows(answer.members),
    ),
    failures=member_failures,
    print_outcome=print_outcome,
)
