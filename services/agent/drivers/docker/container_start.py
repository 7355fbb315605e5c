"""A container's beginning, in one thread: directories, mounts, the container, its claim, its process.

Decides their order, so that a crash at any point leaves no unknown container running. Next: `container_spec.py`.
"""

import contextlib
from pathlib import Path
from typing import Any

import docker
import docker.errors
import msgspec

from services.agent.drivers.docker.container_spec import (
    LABEL,
    ContainerSpec,
    HostCpu,
    create_request,
    of_image,
    with_inputs,
)
from services.agent.drivers.docker.engine import EngineRefused, engine_pid
from services.agent.drivers.docker.mounts import MountPins, MountSources
from services.agent.drivers.docker.run_record import ContainerClaim, write_claim
from services.agent.drivers.docker.settings import DockerSettings
from services.agent.drivers.driver import DriverRun, StartRefused
from shared.core.runtime.agent_messages import TaskLaunch

#: In an engine's answer: trying again fails the same way.
_FINAL = ("executable file not found", "no such file", "unable to find user")


class PendingStart:
    """A start under way; `void`, from outside: it must not come alive."""

    def __init__(self) -> None:
        self.void = False


class StartContext(msgspec.Struct, frozen=True, kw_only=True):
    """Common input of all starts of one driver. `own`: labels of its containers."""

    settings: DockerSettings
    data_dir: Path
    kernel_boot: str
    machine: HostCpu
    own: dict[str, str]


class ContainerStart(msgspec.Struct, frozen=True, kw_only=True):
    """One start."""

    run: DriverRun
    launch: TaskLaunch
    plan: ContainerSpec
    starting: PendingStart


def create_and_start(
    api: docker.APIClient, ground: StartContext, order: ContainerStart
) -> tuple[str, int, str]:
    """Begin a container. Returns its id, its pid and its stop signal. Raises StartRefused or the package's errors.

    After any error no container runs; if the engine does not answer, the start is void.
    """
    run = order.run
    directory = run.directory
    run.make_directories()
    pins = MountPins(directory / "pins", engine_pid=engine_pid(ground.settings.socket))
    pins.release()
    container = ""
    try:
        plan = _with_image_variables(api, order.plan)
        plan = msgspec.structs.replace(plan, env=with_inputs(plan.env, order.launch))
        container = _create(api, _body(ground, order, plan, pins), plan.name, ground.own)
        # Before it runs: what has no claim was never started.
        write_claim(directory, ContainerClaim(container=container, kernel_boot=ground.kernel_boot))
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


def _with_image_variables(api: docker.APIClient, plan: ContainerSpec) -> ContainerSpec:
    """Resolve references to variables of the image, where the task has any."""
    if not any("${" in text for text in plan.env.values()):
        return plan
    name = plan.options.image.removeprefix("https://")
    image = api.inspect_image(name)  # type: ignore[no-untyped-call]
    found = (image.get("Config") or {}).get("Env") or ()
    return msgspec.structs.replace(plan, env=of_image(plan.env, found))


def _body(
    ground: StartContext, order: ContainerStart, plan: ContainerSpec, pins: MountPins
) -> dict[str, Any]:
    body = create_request(
        plan,
        order.run,
        order.launch,
        settings=ground.settings,
        sources=MountSources(ground.settings, ground.data_dir, order.run, pins),
        machine=ground.machine,
        labels=_labels(ground, order),
    )
    if order.launch.logs.disabled:
        body["HostConfig"]["LogConfig"] = {"Type": "none", "Config": {}}
    return body


def _labels(ground: StartContext, order: ContainerStart) -> dict[str, str]:
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


def _create(api: docker.APIClient, body: dict[str, Any], name: str, own: dict[str, str]) -> str:
    """Create a container; a container of ours with this name, left by an earlier attempt, is removed."""
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


def _check(starting: PendingStart) -> None:
    if starting.void:
        raise StartRefused("start was cancelled", recoverable=True)


def start_refusal(err: EngineRefused) -> StartRefused:
    """Explain why an engine does not start a container, and whether a retry may succeed."""
    text = str(err)
    final = err.status == 400 or any(word in text for word in _FINAL)
    return StartRefused(f"container failed to start: {text}", recoverable=not final)
