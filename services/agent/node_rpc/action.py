"""Runs actions: commands that the job of a task names, as sessions like those of exec.

Decides what is recorded of one: log lines, and an event of its task with the exit code and who ran it, which becomes
a fact. Its output is in neither. Must not take a word of the command from the request.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
import structlog

from services.agent.drivers.driver import Driver, DriverRun, ViewingDriver
from services.agent.drivers.launch_values import references_filled
from services.agent.tasks.actions import ActionCommand
from shared.bus.connection.nats_client import header
from shared.errors import CommandInvalid
from shared.jobspec.secret_references import SecretReference, find_references

#: Kind of the task event.
EVENT = "Action"
WHO_CHARS_MAX = 64
_log = structlog.get_logger()


class _RequestInfo(msgspec.Struct):
    """What the bus adds to a request that comes from another account."""

    user: str = ""


def asker(headers: bytes) -> str:
    """Return the bus user who sent a request, as the bus says it; empty: it does not."""
    said = header(headers, b"Nats-Request-Info")
    try:
        user = msgspec.json.decode(said, type=_RequestInfo).user[:WHO_CHARS_MAX]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return user if user.isprintable() else ""


def action_words(
    found: ActionCommand,
    driver: Driver,
    run: DriverRun,
    *,
    variables: Mapping[str, str],
    secrets: Mapping[SecretReference, str],
) -> tuple[str, ...]:
    """Fill directories, variables of inputs and secrets into a command. Raises CommandInvalid."""
    if run.number != found.run:
        raise CommandInvalid("not_running", f"task {found.task!r} is starting", "task")
    for one in find_references(found.words):
        if one not in secrets:
            text = f"{one.text} is not known in this life of the agent; restart the task"
            raise CommandInvalid("unavailable", text, "action")
    plain: Any = driver
    places = (
        plain.directories(run.places)
        if isinstance(plain, ViewingDriver)
        else run.places.variables()
    )
    return references_filled(found.words, {**places, **variables}, secrets)


class ActionRecord:
    """What is recorded of one run of an action."""

    def __init__(self, name: str, run: DriverRun, who: str) -> None:
        self._name = name
        self._run = run
        self._who = who
        self.exit_code: int | None = None

    @contextlib.asynccontextmanager
    async def keep(self, note: Callable[[DriverRun, str, str], None]) -> AsyncIterator[None]:
        """Record begin and end, also of one that failed or was cancelled."""
        names = {"alloc": self._run.alloc_id, "task": self._run.task, "action": self._name}
        _log.info("action.begun", **names, who=self._who)
        reason = "ended before its command did"
        try:
            yield
        except Exception as err:
            reason = f"failed: {str(err) or type(err).__name__}"[:200]
            raise
        finally:
            if self.exit_code is not None:
                reason = f"exit code {self.exit_code}"
            _log.info("action.ended", **names, who=self._who, exit_code=self.exit_code)
            by = f", by {self._who}" if self._who else ""
            note(self._run, EVENT, f"{self._name}: {reason}{by}")
