"""`caravan job action`: run an action of a job in one of its allocations, or list them."""

import sys

import msgspec

from schemas.allocations import TERMINAL_STATUSES
from schemas.job_answers import JobVersionAnswer
from schemas.node_answers import AllocsAnswer
from schemas.node_rpc import ActionAsk
from schemas.projections import AllocSummary, Query
from services.cli.alloc.exec import captured, talk
from services.cli.runtime import terminal
from services.cli.runtime.bus_client import query_view, resolve_job, with_bus
from services.cli.runtime.contexts import require_choice
from services.cli.runtime.node_client import CliNodeStream, find_alloc
from services.cli.runtime.output import CliError, CommandOutput, short_id
from shared.bus.connection.node_stream import new_session_id
from shared.bus.connection.public_client import Client
from shared.jobspec.nomad.job import JOB_DECODER, JobSpec

_ALLOCS_MAX = 1_000


class JobActionLine(msgspec.Struct, frozen=True, kw_only=True):
    """One action of a task."""

    name: str
    group: str
    task: str
    command: tuple[str, ...]


class JobActionsResult(msgspec.Struct, frozen=True, kw_only=True):
    """`job action --json` without an action: those of the newest version."""

    job: str
    version: int
    actions: tuple[JobActionLine, ...]


class JobActionResult(msgspec.Struct, frozen=True, kw_only=True):
    """`job action --json`."""

    job: str
    action: str
    allocation: str
    task: str
    exit_code: int
    stdout: str
    stderr: str


def action(
    out: CommandOutput,
    *,
    job_id: str,
    name: str,
    alloc: str,
    group: str,
    task: str,
    interactive: bool,
    tty: bool,
) -> int:
    """Run an action and return its exit code; without a name list the actions."""
    if not name:
        return _list(out, job_id)
    if out.is_json and (tty or interactive):
        raise CliError("usage", "--json cannot be combined with -i or -t")
    # Nothing is printed beside the command's own output.
    require_choice()

    async def work(client: Client) -> int:
        job = await resolve_job(client, job_id)
        one, owner = await _place(client, job, name, alloc=alloc, group=group, task=task)
        rows, columns = terminal.terminal_size(sys.stdout.fileno())
        ask = ActionAsk(
            alloc_id=one.id,
            action=name,
            session=new_session_id(),
            task=owner,
            tty=tty,
            rows=rows,
            columns=columns,
        )
        async with CliNodeStream(client, one.node, "action", ask) as stream:
            if not out.is_json:
                return await talk(stream, keys=interactive or tty, tty=tty)
            code, stdout, stderr = await captured(stream)
            out.result(
                JobActionResult(
                    job=job,
                    action=name,
                    allocation=one.id,
                    task=owner,
                    exit_code=code,
                    stdout=stdout,
                    stderr=stderr,
                )
            )
            return code

    return with_bus(work)


def _list(out: CommandOutput, job_id: str) -> int:
    async def work(client: Client) -> JobVersionAnswer:
        return await _version(client, await resolve_job(client, job_id), -1)

    answer = with_bus(work)
    found = tuple(
        JobActionLine(
            name=one.name, group=group.name, task=task.name, command=(one.command, *one.args)
        )
        for group in JOB_DECODER.decode(answer.spec).groups
        for task in group.tasks
        for one in task.actions
    )
    out.result(JobActionsResult(job=answer.job_id, version=answer.version, actions=found))
    rows = [(one.name, one.group, one.task, " ".join(one.command)) for one in found]
    out.table("ACTION|GROUP|TASK|COMMAND", rows)
    if not found:
        out.line(f"job {answer.job_id} has no actions")
    return 0


async def _version(client: Client, job: str, version: int) -> JobVersionAnswer:
    return await query_view(client, "job_version", JobVersionAnswer, Query(id=job, version=version))


async def _place(
    client: Client, job: str, name: str, *, alloc: str, group: str, task: str
) -> tuple[AllocSummary, str]:
    """Choose allocation and task: the newest version, then the lowest name. Raises CliError."""
    if alloc:
        found = [(await find_alloc(client, alloc)).allocation]
        if found[0].job_id != job:
            text = f"allocation {short_id(found[0].id)} is of job {found[0].job_id}"
            raise CliError("usage", text)
    else:
        query = Query(job_id=job, limit=_ALLOCS_MAX)
        answer = await query_view(client, "allocs", AllocsAnswer, query)
        found = [one for one in answer.allocations if one.client_status == "running"]
        found.sort(key=lambda one: (-one.version, one.group, one.index))
    specs: dict[int, JobSpec] = {}
    for one in found:
        if group and one.group != group:
            continue
        if one.version not in specs:
            specs[one.version] = JOB_DECODER.decode((await _version(client, job, one.version)).spec)
        owners = _owners(specs[one.version], one.group, name, task)
        if len(owners) > 1:
            text = (
                f"several tasks of group {one.group} have this action: --task {' or '.join(owners)}"
            )
            raise CliError("usage", text)
        if owners:
            if one.client_status in TERMINAL_STATUSES:
                text = f"allocation {short_id(one.id)} is {one.client_status}"
                raise CliError("not_running", text)
            return one, owners[0]
    where = f"allocation {alloc}" if alloc else f"no running allocation of job {job}"
    lacks = "does not have" if alloc else "has"
    of_group = f" in group {group}" if group else ""
    of_task = f" for task {task}" if task else ""
    raise CliError("not_found", f"{where}{of_group} {lacks} an action {name!r}{of_task}")


def _owners(spec: JobSpec, group: str, name: str, task: str) -> list[str]:
    return [
        one.name
        for found in spec.groups
        if found.name == group
        for one in found.tasks
        if task in ("", one.name) and any(action.name == name for action in one.actions)
    ]
