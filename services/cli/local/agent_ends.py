"""The end of a cluster's agents: asks them to end, repeats what they wait for, and asks again where the user does.

An agent bounds its own end (`services/agent/executor/tasks_end.py`); here it is killed only where it keeps to no bound.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from services.cli.local.processes import SupervisedProcess

#: After the agent's own limit: it kills its tasks then, and ends.
AGENT_MARGIN_S = 60.0
#: What an agent itself waits, unless the variable says otherwise.
END_TASKS_LIMIT_S = 900.0
LIMIT_VARIABLE = "CARAVAN_AGENT_END_TASKS_LIMIT_S"
HURRIED = "ending at once: tasks are killed"
_LOOK_S = 0.05


class _AwaitedLine(msgspec.Struct):
    event: str = ""
    group: str = ""
    reason: str = ""


class AgentLog:
    """What an agent writes from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0
        self._rest = b""

    def awaited(self) -> list[str]:
        """What it says that it waits for, since the last call."""
        with contextlib.suppress(OSError), self._path.open("rb") as log:
            log.seek(self._at)
            data = log.read()
            self._at += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            return [text for line in lines if (text := _awaited_of(line))]
        return []


def _awaited_of(line: bytes) -> str:
    try:
        found = msgspec.json.decode(line, type=_AwaitedLine)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return f"{found.group}: {found.reason}" if found.event == "tasks.awaited" else ""


def end_agents(
    agents: Sequence[SupervisedProcess],
    logs: Sequence[AgentLog],
    *,
    limit_s: float,
    report: Callable[[str], None],
    is_hurried: Callable[[], bool],
) -> int:
    """Stop agents by SIGTERM, and again when hurried; then SIGKILL. Returns how many were killed."""
    for agent in agents:
        agent.signal(signal.SIGTERM)
    deadline, hurried = time.monotonic() + limit_s + AGENT_MARGIN_S, False
    while any(agent.pid for agent in agents) and time.monotonic() < deadline:
        if is_hurried() and not hurried:
            hurried = True
            report(HURRIED)
            for agent in agents:
                agent.signal(signal.SIGTERM)
            deadline = time.monotonic() + AGENT_MARGIN_S
        for log in logs:
            for text in log.awaited():
                report(f"waiting for {text}")
        time.sleep(_LOOK_S)
    return sum(agent.wait_or_kill(0) for agent in agents)
