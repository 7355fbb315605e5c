"""The agent's end, seen from outside its role: asks it to end the tasks, says what is waited for, and bounds the wait.

Decides when patience is over: at a second signal, or when the limit is reached, what runs is killed. Next:
`services/agent/tasks/agent_end.py`.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

import structlog

from shared.core.runtime.agent_messages import EndTasks

#: Not more than one line in this time says what is waited for.
LINE_S = 1.0
#: After a kill: a driver may hang, or the kernel hold a process.
KILL_S = 30.0
_log = structlog.get_logger()


async def end_tasks(
    *,
    inject: Callable[[EndTasks], None],
    awaited: Callable[[], Mapping[str, str]],
    ended: asyncio.Event,
    again: asyncio.Event,
    limit_s: float,
) -> None:
    """Return when no task runs any more, or when killing did not help. `again`: do not wait for the tasks."""
    began_s = time.monotonic()
    inject(EndTasks())
    told: dict[str, str] = {}
    while not ended.is_set() and not again.is_set():
        if (left_s := began_s + limit_s - time.monotonic()) <= 0:
            break
        await _first(ended, again, within_s=min(LINE_S, left_s))
        news = {name: text for name, text in awaited().items() if told.get(name) != text}
        for name in list(news)[:1]:
            told[name] = news[name]
            _log.info("tasks.awaited", group=name, reason=news[name])
    if not ended.is_set():
        reason = "asked again" if again.is_set() else f"not over within {limit_s:g} s"
        _log.warning("tasks.killed", reason=reason, groups=dict(awaited()))
        inject(EndTasks(at_once=True))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), KILL_S)
    _log.info("tasks.ended", is_all=ended.is_set(), seconds=round(time.monotonic() - began_s, 1))


async def _first(*events: asyncio.Event, within_s: float) -> None:
    waits = [asyncio.ensure_future(one.wait()) for one in events]
    await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    for one in waits:
        one.cancel()
