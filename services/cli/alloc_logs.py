"""`caravan alloc logs`: what a task wrote, from the files of an agent on this machine."""

import sys
import time

from schemas.answers import AllocAnswer
from schemas.projections import Query
from services.cli import running_ups
from services.cli.asking import ask_once, bus_url
from services.cli.log_files import LogFiles, log_path
from services.cli.output import CliError, Output, short

#: What `--json` holds of a log at the most: its end.
_TEXT_BYTES_MAX = 1 << 20
_POLL_S = 0.1
#: How often a follower looks whether the task still lives.
_LOOK_S = 2.0


def logs(out: Output, *, alloc_id: str, task: str, stderr: bool, follow: bool, tail: int) -> int:
    """Print what a task wrote; with `follow` go on until the allocation ended and all was printed."""
    if follow and out.is_json:
        raise CliError("usage", "--json prints one object, so it cannot follow")
    answer = ask_once("alloc", AllocAnswer, Query(id=alloc_id))
    one = answer.allocation
    task = task or _only_task(sorted(answer.tasks), one.id)
    folder = running_ups.agent_dir(one.node, bus_url())
    if folder is None:
        text = f"node {one.node} has no agent of `caravan up` on this machine; its logs are there"
        raise CliError("not_found", text)
    stream = "stderr" if stderr else "stdout"
    path = log_path(folder, one.id, task, stream)
    if not path.exists() and not follow:
        raise CliError(
            "not_found", f"task {task!r} of allocation {short(one.id)} wrote no {stream} yet"
        )
    files = LogFiles(path)
    if out.is_json:
        data = files.tail(tail, _TEXT_BYTES_MAX)
        out.result(
            {
                "allocation": one.id,
                "task": task,
                "stream": stream,
                "path": str(path),
                "size": files.size(),
                "text": data.decode("utf-8", "replace"),
            }
        )
        return 0
    if tail > 0:
        _write(files.tail(tail))
    _copy(files)
    if follow:
        _follow(files, one.id)
    return 0


def _follow(files: LogFiles, alloc_id: str) -> None:
    looked = time.monotonic()
    ended = False
    while True:
        _copy(files)
        if ended:
            return
        time.sleep(_POLL_S)
        if time.monotonic() - looked > _LOOK_S:
            looked = time.monotonic()
            now = ask_once("alloc", AllocAnswer, Query(id=alloc_id)).allocation
            ended = now.client_status in ("complete", "failed", "lost")


def _copy(files: LogFiles) -> None:
    while data := files.take():
        _write(data)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _only_task(tasks: list[str], alloc_id: str) -> str:
    if len(tasks) == 1:
        return tasks[0]
    if not tasks:
        raise CliError("not_found", f"no task of allocation {short(alloc_id)} was reported yet")
    raise CliError("usage", f"which task? {', '.join(tasks)}")
