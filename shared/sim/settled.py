"""Settled: whether every job has what it was promised, by the books alone.

Decides what a job at rest looks like, by type. A finding here is only one when the world had its time. Must not know
processes or tasks. Next: `oracle.py`.
"""

from collections.abc import Callable

from shared.sim.books import EVERYWHERE, Alloc, Ask, Books, JobBook

#: How many of a job's group are said to wait for room.
Told = Callable[[str, str], int]


def unsettled_jobs(books: Books, told: Told) -> str:
    """Say which job is not what it was promised to be; nothing: all are."""
    for job in books.jobs.values():
        for group, (count, ask) in job.groups[job.version].items():
            allocs = [books.allocs[row] for row in sorted(books.wanted(job.id, group))]
            if len({books.spot(job, one) for one in allocs}) != len(allocs):
                return f"{job.id}.{group} has a name twice: {allocs}"
            if job.is_stopped:
                found = f"{job.id}.{group} is stopped, has {allocs}" if allocs else ""
            elif job.job_type in EVERYWHERE:
                found = _everywhere(books, job, group, wish=(count, ask), told=told(job.id, group))
            elif job.job_type == "batch":
                done = books.done(job, group)
                found = f"{job.id}.{group} wants {count} complete, has {done}, {allocs}"
                found = "" if done >= count else found
            else:
                found = _service(books, job, group, count=count, allocs=allocs)
            if found:
                return found
    return ""


def _service(books: Books, job: JobBook, group: str, *, count: int, allocs: list[Alloc]) -> str:
    if len(allocs) == count and all(one.client == "running" for one in allocs):
        return ""
    story = [one for one in books.of_group(job, group) if one.desired == "run"]
    return f"{job.id}.{group} wants {count}, has {story}"


def _everywhere(books: Books, job: JobBook, group: str, *, wish: tuple[int, Ask], told: int) -> str:
    """One of each name on every ready node: running, or ended where that is for good; else the node has no room."""
    count, ask = wish
    held: dict[int, set[int]] = {}
    for one in books.of_group(job, group):
        if one.desired != "run" or books.allocs.get(one.row) is not one:
            continue
        ended = one.client in {"complete", "failed"}
        if ended and job.job_type == "sysbatch" and one.version != job.version:
            continue
        if not ended and one.client != "running":
            return f"{job.id}.{group} waits for {one}"
        if not ended and job.job_type == "sysbatch":
            return f"{job.id}.{group} still runs {one}"
        held.setdefault(one.node, set()).add(one.index)
    lacking = 0
    for row, node in books.nodes.items():
        if node.status != "ready":
            return f"{job.id}.{group}: node {node.id} is {node.status}"
        if node.drain_ns is not None:
            # It takes nothing new; what may stay there, and how long, is the operator's matter.
            continue
        missing = count - len(held.get(row, ()))
        fits = all(
            used + more <= room
            for used, more, room in zip(node.used, ask, node.capacity, strict=True)
        )
        if missing and fits:
            return f"{job.id}.{group} lacks {missing} on {node.id}, which has room"
        lacking += missing
    if told != lacking:
        return f"{job.id}.{group} lacks {lacking}, {told} are said to wait"
    return ""
