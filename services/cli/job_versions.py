"""`caravan job inspect` and `history`: the texts of a job's versions, and what each changed."""

import msgspec

from schemas.answers import JobVersionAnswer, JobVersionsAnswer
from schemas.projections import Query
from services.cli.asking import ask_once, ask_pages
from services.cli.job_plan import changes
from services.cli.output import Output


def inspect(out: Output, *, job_id: str, version: int) -> int:
    """Print one version as JSON that can be submitted again."""
    answer = ask_once("job_version", JobVersionAnswer, Query(id=job_id, version=version))
    out.result(
        {
            "job": answer.job_id,
            "version": answer.version,
            "spec": answer.spec,
            "seq": answer.seq,
        }
    )
    text = msgspec.json.format(b'{"Job":%b}' % bytes(answer.spec), indent=2)
    for line in text.decode().splitlines():
        out.line(line)
    return 0


def history(out: Output, *, job_id: str, limit: int) -> int:
    """Show versions, newest first, each with its difference from the one before."""
    from shared.jobspec.diff import diff_jobs

    answer = ask_pages("job_versions", JobVersionsAnswer, Query(id=job_id, limit=limit), "versions")
    shown = []
    for index, one in enumerate(answer.versions):
        older = answer.versions[index + 1] if index + 1 < len(answer.versions) else None
        diff = diff_jobs(bytes(older.spec), bytes(one.spec)) if older is not None else ()
        shown.append((one, older, diff))
    out.result(
        {
            "job": answer.job_id,
            "versions": [
                {"version": one.version, "registered_seq": one.seq, "diff": diff}
                for one, _, diff in shown
            ],
            "seq": answer.seq,
        }
    )
    for one, older, diff in shown:
        since = f", compared with {older.version}" if older is not None else ""
        out.line(f"version {one.version}, registered at seq {one.seq}{since}", "bold")
        changes(out, diff)
        if older is not None and not diff:
            out.line("  the same text, registered again after a stop", "dim")
    return 0
