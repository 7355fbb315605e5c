"""`caravan job inspect` and `job history`: the texts of a job's versions and the changes between them."""

import shlex
import sys

import msgspec

from schemas.bounds import QUERY_LIMIT_MAX
from schemas.job_answers import FieldChange, JobVersionAnswer, JobVersionsAnswer
from schemas.projections import Query
from schemas.submissions import JobSource
from services.cli.job.plan import print_changes
from services.cli.runtime.bus_client import query_pages, query_view, resolve_job, with_bus
from services.cli.runtime.output import CliError, CommandOutput, strip_control_chars
from shared.bus.connection.public_client import Client
from shared.errors import LogDropped
from shared.query.job_source import source_in, source_places


class JobInspectResult(msgspec.Struct, frozen=True):
    """`job inspect --json`."""

    job: str
    version: int
    spec: msgspec.Raw
    seq: int


class JobSourceResult(msgspec.Struct, frozen=True):
    """`job inspect --hcl --json`."""

    job: str
    version: int
    source: JobSource
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


def inspect(out: CommandOutput, *, job_id: str, version: int, hcl: bool, with_vars: bool) -> int:
    """Print one version as JSON that can be submitted again; with `hcl` the file that it was made of."""
    if hcl:
        return _inspect_source(out, job_id, version, with_vars=with_vars)
    if with_vars:
        raise CliError("usage", "--with-vars is for --hcl")

    async def work(client: Client) -> JobVersionAnswer:
        query = Query(id=await resolve_job(client, job_id), version=version)
        return await query_view(client, "job_version", JobVersionAnswer, query)

    answer = with_bus(work)
    out.result(JobInspectResult(answer.job_id, answer.version, answer.spec, answer.seq))
    text = msgspec.json.format(b'{"Job":%b}' % bytes(answer.spec), indent=2)
    for line in text.decode().splitlines():
        out.line(line)
    return 0


def _inspect_source(out: CommandOutput, job_id: str, version: int, *, with_vars: bool) -> int:
    name = with_bus(lambda client: resolve_job(client, job_id))
    answer = query_pages(
        "job_versions", JobVersionsAnswer, Query(id=name, limit=QUERY_LIMIT_MAX), "versions"
    )
    wanted = answer.versions[0].version if version < 0 else version
    kept = [(one.version, one.seq, bytes(one.spec)) for one in answer.versions]
    places = source_places(kept, wanted)
    if not places:
        raise CliError("not_found", f"job {name!r} has no stored version {wanted}")

    async def work(client: Client) -> JobSource | None:
        for number, seq in places:
            try:
                read = [one.data async for one in client.read_log(seq, seq)]
            except LogDropped:
                continue
            if read and (source := source_in(read[0], seq, name, number)) is not None:
                return source
        return None

    source = with_bus(work)
    if source is None:
        text = "none was submitted with it, or the log has dropped it"
        raise CliError("not_found", f"version {wanted} of job {name!r} has no source: {text}")
    out.result(JobSourceResult(name, wanted, source, answer.seq))
    if not out.is_json:
        # A terminal obeys control characters, a file gets what was written.
        text = source.source
        out.write((strip_control_chars(text) if sys.stdout.isatty() else text).encode())
    if with_vars:
        # Beside the file, so that the output remains one.
        for key, value in sorted(source.variable_flags.items()):
            out.note(f"--var {shlex.quote(f'{key}={value}')}")
        for line in source.variables.splitlines():
            out.note(line)
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
