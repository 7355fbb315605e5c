"""What the engine says of an ended container, and what the agent makes of it."""

import signal
from pathlib import Path
from typing import Any

import pytest

from services.agent.drivers.docker.run_record import OOM_CHILD_TEXT, OOM_TEXT, container_exit
from services.agent.drivers.driver import record_signal, recorded_signals

TERM, KILL = int(signal.SIGTERM), int(signal.SIGKILL)


def said(code: int, **more: Any) -> dict[str, Any]:
    """A container's state."""
    return {"ExitCode": code, **more}


@pytest.mark.parametrize(
    ("state", "sent", "number", "reason"),
    [
        (said(137), (), 0, ""),
        (said(143), (KILL,), 0, ""),
        (said(137), (KILL,), 9, ""),
        (said(143), (TERM, KILL), 15, ""),
        (said(0), (TERM,), 0, ""),
        (said(137, OOMKilled=True), (), 9, OOM_TEXT),
        (said(137, OOMKilled=True), (TERM, KILL), 9, OOM_CHILD_TEXT),
        (said(1, OOMKilled=True), (), 0, OOM_CHILD_TEXT),
        (said(0, OOMKilled=True), (), 0, ""),
    ],
)
def test_a_signal_is_told_where_one_was_sent(
    state: dict[str, Any], sent: tuple[int, ...], number: int, reason: str
) -> None:
    """A code above 128 is a signal where that signal was sent; a forced kill is not the kernel's for lack of memory."""
    end = container_exit(state, frozenset(sent))
    assert (end.code, end.signal, end.reason) == (state["ExitCode"], number, reason)


def test_the_signals_of_a_run_are_kept(tmp_path: Path) -> None:
    """The next life of the agent knows what a run was sent; without records nothing was."""
    assert recorded_signals(tmp_path) == frozenset()
    for number in (TERM, KILL, KILL):
        record_signal(tmp_path, number)
    assert recorded_signals(tmp_path) == {TERM, KILL}
