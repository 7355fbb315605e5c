"""What an operator's switches give a container on a real engine, and no more than each says."""

import os
from pathlib import Path
from typing import Any

import pytest

from services.agent.drivers.driver import StartRefused
from tests import not_tested
from tests.docker.box import a_box
from tests.docker.engine import OwnEngine

pytestmark = pytest.mark.asyncio

SOCKET = "SOCKET"


def need_all_capabilities() -> None:
    """Leave a test out, loudly, where the machine's own root lacks rights."""
    held = int(Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0], 16)
    every = (1 << int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1) - 1
    if held != every:
        not_tested.missing_feature("privileged containers need a machine with all capabilities")


@pytest.mark.parametrize(
    ("settings", "options", "script", "says"),
    [
        ({"allow_devices": True}, {"devices": [{"host_path": "/dev/loop-control", "container_path": "/dev/mine"}]},
         "[ -c /dev/mine ] && echo there", "there"),
        ({"allow_host_namespaces": True}, {"uts_mode": "host"}, "hostname", os.uname().nodename),
        ({"allow_host_namespaces": True}, {"pid_mode": "host"},
         "[ -d /proc/PID ] && echo seen", "seen"),
        ({"allow_host_namespaces": True}, {"ipc_mode": "host"}, "echo started", "started"),
        ({"allow_device_volumes": True}, {"volumes": ["/dev/full:/dev/mine"]},
         "[ -c /dev/mine ] && echo there", "there"),
        ({"allow_engine_socket": True}, {"volumes": [f"{SOCKET}:/s"]}, "[ -S /s ] && echo there", "there"),
        ({"allowed_log_drivers": "local"}, {"logging": [{"type": "local", "config": [{"max-size": "1m"}]}]},
         "echo kept", "kept"),
    ],
    ids=lambda one: str(one)[:40],
)  # fmt: skip
async def test_a_switch_gives_what_it_says(
    *,
    engine: OwnEngine,
    top: Path,
    settings: dict[str, Any],
    options: dict[str, Any],
    script: str,
    says: str,
) -> None:
    """Without the switch the start is refused for good; with it the container has what it asked for."""
    # Not in the parameters: the names of tests must be the same in every process.
    script = script.replace("PID", str(os.getpid()))
    link = top / "docker.sock"
    link.symlink_to(engine.url.removeprefix("unix://"))
    if "volumes" in options:
        options = {"volumes": [one.replace(SOCKET, str(link)) for one in options["volumes"]]}
    async with a_box(engine, top / "off") as box:
        with pytest.raises(StartRefused, match="CARAVAN_DOCKER_ALLOW") as caught:
            await box.start(script, **options)
        assert not caught.value.recoverable
        assert not {
            name for name in box.driver.fingerprint() if "allow" in name or "log_driver" in name
        }
    async with a_box(engine, top / "on", **settings) as box:
        end = await box.ended(script, **options)
        assert (end.code, box.output().strip()) == (0, says), box.output("stderr")


@pytest.mark.parametrize(
    ("settings", "options", "script", "says"),
    [
        ({"allow_privileged": True}, {"privileged": True},
         "mkdir /m && mount -t tmpfs none /m && echo mounted", "mounted"),
        ({"allow_realtime": True}, {"ulimit": [{"rtprio": "7"}]}, "ulimit -r", "7"),
    ],
    ids=["privileged", "rtprio"],
)  # fmt: skip
async def test_a_switch_gives_rights_of_the_node(
    *,
    engine: OwnEngine,
    top: Path,
    settings: dict[str, Any],
    options: dict[str, Any],
    script: str,
    says: str,
) -> None:
    """Where the machine itself has all rights, a privileged container has them, and one with rtprio its limit."""
    need_all_capabilities()
    async with a_box(engine, top, **settings) as box:
        end = await box.ended(script, **options)
        assert (end.code, box.output().strip()) == (0, says), box.output("stderr")


async def test_a_socket_of_another_engine_and_a_way_out_of_dev_are_refused(
    engine: OwnEngine, top: Path
) -> None:
    """The switches open the engine's own socket and what is in /dev: nothing that only looks like it."""
    (top / "docker.sock").touch()
    name = f"caravan-test-{os.getpid()}"
    link = Path("/dev/shm") / name
    link.symlink_to("/etc")
    try:
        async with a_box(engine, top, allow_engine_socket=True, allow_device_volumes=True) as box:
            for source in (f"{top}/docker.sock", str(link), f"{link}/shadow"):
                with pytest.raises(StartRefused):
                    await box.start(volumes=[f"{source}:/e"])
            assert box.containers() == []
    finally:
        link.unlink()
