"""A container's beginning, in one thread: directories, mounts, the container, its claim, its process.

Decides their order, so that a crash at any point leaves nothing that runs and nobody knows. Next: `docker_create.py`.
"""

import contextlib
from pathlib import Path
from typing import Any

import docker
import docker.errors
import msgspec

from services.agent.drivers.docker_create import LABEL, Machine, Plan, request
from services.agent.drivers.docker_engine import EngineRefused
from services.agent.drivers.docker_mounts import Pins, Sources
from services.agent.drivers.docker_settings import DockerSettings
from services.agent.drivers.docker_state import Claim, write_claim
from services.agent.drivers.driver import Run, StartRefused
from shared.core.tasks import TaskLaunch

#: In an engine's answer: trying again fails the same way.
_FINAL = ("executable file not found", "no such file", "unable to find user")


class Starting:
    """A start under way; `void`, from outside: it must not come alive."""

    def __init__(self) -> None:
        self.void = False


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What all starts of one driver stand on. `own`: labels that say whose a container is."""

    settings: DockerSettings
    data_dir: Path
    kernel_boot: str
    machine: Machine
    own: dict[str, str]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One start."""

    run: Run
    launch: TaskLaunch
    plan: Plan
    starting: Starting


def begin(api: docker.APIClient, ground: Ground, order: Order) -> tuple[str, int, str]:
    """Begin a container. Returns its id, its pid and its stop signal. Raises StartRefused or the package's errors.

    Whatever is raised: nothing of it is alive, and if the engine does not answer, it is void.
    """
    run = order.run
    directory = run.places.runs / str(run.number)
    _make_directories(run, directory)
    pins = Pins(directory / "pins")
    pins.release()
    container = ""
    try:
        container = _create(api, _body(ground, order, pins), order.plan.name, ground.own)
        # Before it runs: what has no claim was never started.
        write_claim(directory, Claim(container=container, kernel_boot=ground.kernel_boot))
        _check(order.starting)
        api.start(container)
        _check(order.starting)
        found = api.inspect_container(container)
    except BaseException:
        if container:
            with contextlib.suppress(Exception):
                api.remove_container(container, force=True, v=True)
        raise
    finally:
        pins.release()
    return container, int(found["State"]["Pid"]), str(found["Config"].get("StopSignal") or "")


def _body(ground: Ground, order: Order, pins: Pins) -> dict[str, Any]:
    body = request(
        order.plan,
        order.run,
        order.launch,
        settings=ground.settings,
        sources=Sources(ground.settings, ground.data_dir, order.run, pins),
        machine=ground.machine,
        labels=_labels(ground, order),
    )
    if order.launch.logs.disabled:
        body["HostConfig"]["LogConfig"] = {"Type": "none", "Config": {}}
    return body


def _labels(ground: Ground, order: Order) -> dict[str, str]:
    run, names = order.run, order.launch.names
    found = {
        **ground.own,
        f"{LABEL}alloc": run.alloc_id,
        f"{LABEL}task": run.task,
        f"{LABEL}run": str(run.number),
        f"{LABEL}job": names.job,
        f"{LABEL}group": names.group,
    }
    return {name: text for name, text in found.items() if text}


def _make_directories(run: Run, directory: Path) -> None:
    try:
        for path in (*run.places.directories(), directory):
            path.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise StartRefused(f"directories cannot be made: {err}", recoverable=True) from err


def _create(api: docker.APIClient, body: dict[str, Any], name: str, own: dict[str, str]) -> str:
    """Make a container; one of ours that an earlier try left under this name goes."""
    try:
        made = api.create_container_from_config(body, name)  # type: ignore[no-untyped-call]
    except docker.errors.APIError as err:
        if err.response is None or err.response.status_code != 409:
            raise
        labels = api.inspect_container(name)["Config"].get("Labels") or {}
        if any(labels.get(key) != text for key, text in own.items()):
            raise
        api.remove_container(name, force=True, v=True)
        made = api.create_container_from_config(body, name)  # type: ignore[no-untyped-call]
    return str(made["Id"])


def _check(starting: Starting) -> None:
    if starting.void:
        raise StartRefused("the start was given up", recoverable=True)


def refusal(err: EngineRefused) -> StartRefused:
    """Say why an engine does not start a container, and whether it might another time."""
    text = str(err)
    final = err.status == 400 or any(word in text for word in _FINAL)
    return StartRefused(f"container cannot be started: {text}", recoverable=not final)
