"""`caravan job inspect` and `job history`: the texts of a job's versions and the changes between them."""

import msgspec

from schemas.job_answers import FieldChange, JobVersionAnswer, JobVersionsAnswer
from schemas.projections import Query
from services.cli.job.plan import print_changes
from services.cli.runtime.bus_client import query_pages, query_view, resolve_job, with_bus
from services.cli.runtime.output import CommandOutput
from shared.bus.connection.public_client import Client


class JobInspectResult(msgspec.Struct, frozen=True):
    """`job inspect --json`."""

    job: str
    version: int
    spec: msgspec.Raw
    seq: int


class JobVersionLine(msgspec.Struct, frozen=True):
    """A version and its changes against the one before."""

    version: int
    registered_seq: int
    #: a failed deployment goes back to the newest version that is.
    stable: bool
    #: its name, and what was said of it; empty: none.
    tag: str
    tag_description: str
    diff: tuple[FieldChange, ...]


class JobHistoryResult(msgspec.Struct, frozen=True):
    """`job history --json`."""

    job: str
    versions: list[JobVersionLine]
    seq: int


def inspect(out: CommandOutput, *, job_id: str, version: int) -> int:
    """Print one version as JSON that can be submitted again."""

    async def work(client: Client) -> JobVersionAnswer:
        query = Query(id=await resolve_job(client, job_id), version=version)
        return await query_view(client, "job_version", JobVersionAnswer, query)

    answer = with_bus(work)
    out.result(JobInspectResult(answer.job_id, answer.version, answer.spec, answer.seq))
    text = msgspec.json.format(b'{"Job":%b}' % bytes(answer.spec), indent=2)
    for line in text.decode().splitlines():
        out.line(line)
    return 0


def history(out: CommandOutput, *, job_id: str, limit: int) -> int:
    """Show versions, newest first, each with its changes against the one before."""
    from shared.jobspec.diff import diff_jobs

    name = with_bus(lambda client: resolve_job(client, job_id))
    query = Query(id=name, limit=limit)
    answer = query_pages("job_versions", JobVersionsAnswer, query, "versions")
    shown = []
    for index, one in enumerate(answer.versions):
        older = answer.versions[index + 1] if index + 1 < len(answer.versions) else None
        diff = tuple(diff_jobs(bytes(older.spec), bytes(one.spec))) if older is not None else ()
        shown.append((one, older, diff))
    lines = [
        JobVersionLine(one.version, one.seq, one.stable, one.tag, one.tag_description, diff)
        for one, _, diff in shown
    ]
    out.result(JobHistoryResult(answer.job_id, lines, answer.seq))
    for one, older, diff in shown:
        since = f", compared with {older.version}" if older is not None else ""
        stable = ", stable" if one.stable else ""
        out.line(f"version {one.version}{stable}, registered at seq {one.seq}{since}", "bold")
        if one.tag:
            about = f": {one.tag_description}" if one.tag_description else ""
            out.line(f"  tag {one.tag}{about}")
        print_changes(out, diff)
        if older is not None and not diff:
            out.line("  no changes; registered again", "dim")
    return 0
