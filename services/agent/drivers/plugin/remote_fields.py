"""Fields of requests to a driver plugin about a run that is elsewhere, beside those of every run.

Decides which fields name it: the token is its key, wherever it is tracked; slot and epoch come with every verb, so that
the driver can refuse a tracker that another one has replaced.
"""

from typing import Any

import msgspec

from services.agent.drivers.driver import StartRefused
from services.agent.drivers.plugin.protocol import AcceptedDriver
from shared.core.runtime.agent_messages import TaskLaunch
from shared.core.runtime.remote_messages import NO_HANDLE, RemoteRun


def run_fields(key: str, remote: RemoteRun | None) -> dict[str, Any]:
    """Return the fields that name a run in every verb."""
    if remote is None:
        return {"run": key}
    return {"run": remote.token, "slot": remote.slot, "epoch": remote.epoch}


def slot_fields(remote: RemoteRun | None) -> dict[str, Any]:
    """Return what a start says beside: which attempt of which generation it is."""
    if remote is None:
        return {}
    return {"generation": remote.generation, "attempt": remote.attempt}


def known_handle(remote: RemoteRun | None, kept: msgspec.Raw | None) -> msgspec.Raw | None:
    """Return the newest handle of a run: of this node's files, or as the log has it; None: there is none."""
    if kept is not None or remote is None or bytes(remote.handle) == bytes(NO_HANDLE):
        return kept
    return remote.handle


def require_remote(
    name: str, remote: RemoteRun | None, launch: TaskLaunch, traits: AcceptedDriver
) -> None:
    """Refuse a start that does not fit what the driver declares. Raises StartRefused."""
    is_remote = traits.can("remote")
    if is_remote != (remote is not None):
        what = "runs tasks elsewhere" if is_remote else "runs tasks here"
        raise StartRefused(f"driver {name} {what} since it was started anew", recoverable=True)
    if is_remote and launch.network.mode not in ("", "host"):
        text = f"driver {name} runs tasks elsewhere: no network of the group"
        raise StartRefused(text, recoverable=False)
    if is_remote and launch.volumes:
        raise StartRefused(f"driver {name} runs tasks elsewhere: no volumes", recoverable=False)
