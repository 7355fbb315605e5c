"""What a job could try through driver docker, and does not get: a test for each way out of a container."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from services.agent.drivers.docker.mounts import MountPins, MountSources
from services.agent.drivers.docker.settings import DockerSettings
from services.agent.drivers.driver import StartRefused
from tests.bounds import WAIT_S, level
from tests.docker.box import ALLOC, a_box, launch
from tests.docker.engine import OwnEngine

pytestmark = pytest.mark.asyncio

FORBIDDEN = [
    ({"privileged": True}, "privileged"),
    ({"privileged": "true"}, "privileged"),
    ({"cap_add": ["SYS_ADMIN"]}, "SYS_ADMIN"),
    ({"cap_add": ["all"]}, "ALL"),
    ({"cap_add": ["NET_ADMIN"]}, "NET_ADMIN is not allowed on this node"),
    ({"pid_mode": "host"}, "pid_mode"),
    ({"ipc_mode": "host"}, "ipc_mode"),
    ({"uts_mode": "host"}, "uts_mode"),
    ({"userns_mode": "host"}, "userns_mode"),
    ({"cgroupns": "host"}, "cgroupns"),
    ({"network_mode": "host"}, "host is not allowed on this node"),
    ({"network_mode": "container:other"}, "network_mode"),
    ({"devices": [{"host_path": "/dev/kmsg"}]}, "devices is not allowed on this node"),
    ({"devices": [{"host_path": "/etc/shadow"}]}, "must be a path below /dev"),
    ({"volumes": ["/dev/kmsg:/dev/kmsg"]}, "ALLOW_DEVICE_VOLUMES"),
    ({"volumes": ["local:/dev/x"]}, "is not allowed"),
    ({"auth": [{"server_address": "r"}]}, "AUTH_FILE"),
    ({"auth": [{"username": "a", "password": "b"}]}, "would be stored in the log"),
    ({"ulimit": [{"rtprio": "99"}]}, "ALLOW_REALTIME"),
    ({"launch_memory_max_mib": -1}, "ALLOW_UNLIMITED_MEMORY"),
    ({"security_opt": ["seccomp=unconfined"]}, "security_opt"),
    ({"sysctl": [{"kernel.core_pattern": "|/x"}]}, "sysctl"),
    ({"runtime": "other"}, "runtime"),
    ({"volume_driver": "x"}, "volume_driver"),
    ({"labels": {"com.caravan.home": "x"}}, "com.caravan"),
    ({"pids_limit": 100_000}, "pids_limit"),
    ({"logging": [{"type": "syslog"}]}, "ALLOWED_LOG_DRIVERS"),
    ({"logging": [{"type": "none"}]}, "must be one of"),
    ({"volumes": ["/var/run/docker.sock:/s"]}, "socket"),
    ({"volumes": ["/etc:/e"]}, "outside the allowed mount roots"),
    ({"volumes": ["../../../../etc:/e"]}, "must not lead out"),
    ({"volumes": ["local/../../../x:/e"]}, "must not lead out"),
    ({"mount": [{"type": "bind", "source": "/", "target": "/e"}]}, "outside the allowed mount roots"),
    ({"mount": [{"type": "bind", "source": "local", "target": "/proc"}]}, "is not allowed"),
    ({"mount": [{"type": "bind", "source": "local", "target": "/x/../dev/shm"}]}, "is not allowed"),
    ({"mount": [{"type": "volume", "source": "v", "target": "/e"}]}, "volume 'v' is not allowed"),
    (
        {"mount": [{"type": "volume", "source": "v", "target": "/e", "volume_options": [
            {"driver_config": [{"name": "local", "options": [{"device": "/etc", "o": "bind"}]}]}]}]},
        "driver_config",
    ),
    (
        {"mount": [{"type": "bind", "source": "local", "target": "/e", "bind_options": [
            {"propagation": "rshared"}]}]},
        "propagation",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("options", "says"), FORBIDDEN, ids=lambda one: str(one)[:40])
async def test_a_way_out_is_refused(
    engine: OwnEngine, top: Path, options: dict[str, Any], says: str
) -> None:
    """An option that would open the node is refused on the node, with its reason, and nothing is made."""
    async with a_box(engine, top) as box:
        with pytest.raises(StartRefused) as caught:
            await box.start(**options)
        assert says in str(caught.value)
        assert not caught.value.recoverable
        assert box.containers() == []


async def test_what_the_operator_allows_is_given(engine: OwnEngine, top: Path) -> None:
    """An allowed root, volume, capability and the node's network are given, and no more than that."""
    shown = top / "shown"
    (shown / "in").mkdir(parents=True)
    (shown / "in" / "f").write_text("text")
    settings = {
        "allowed_roots": str(shown),
        "allowed_volumes": "kept",
        "allowed_caps": "net_raw",
        "allow_host_network": True,
    }
    async with a_box(engine, top / "home", **settings) as box:
        end = await box.ended(
            "cat /d/f; touch /d/no || echo readonly; touch /v/x && echo volume",
            volumes=[f"{shown}/in:/d:ro"],
            mount=[{"type": "volume", "source": "kept", "target": "/v"}],
            cap_add=["NET_RAW"],
            network_mode="host",
        )
        assert end.code == 0
        assert box.output() == "textreadonly\nvolume\n"


async def test_own_places_can_be_mounted(engine: OwnEngine, top: Path) -> None:
    """Paths of the task itself, relative or by variable, and a tmpfs, are mounted where the job says."""
    async with a_box(engine, top) as box:
        places = box.run().places
        (places.task / "local").mkdir(parents=True)
        (places.task / "local" / "conf").write_text("mine")
        end = await box.ended(
            "cat /etc/conf; echo x > /fresh/y; echo z > /data/z; mount | grep -c 'tmpfs on /t '",
            volumes=["local/conf:/etc/conf", "local/fresh:/fresh", "${NOMAD_ALLOC_DIR}/data:/data"],
            mounts=[{"type": "tmpfs", "target": "/t", "tmpfs_options": [{"size": 1_000_000}]}],
        )
        assert end.code == 0
        assert box.output() == "mine1\n"
        assert (places.task / "local" / "fresh" / "y").read_text() == "x\n"
        assert (places.shared / "data" / "z").exists()
        assert not list(places.runs.glob("*/pins/*")), "what was pinned is let go"


@pytest.mark.parametrize("kind", ["root", "socket", "agent"])
async def test_a_link_does_not_lead_out(engine: OwnEngine, top: Path, kind: str) -> None:
    """A link below an allowed root, or one that a task made, does not reach what is not allowed."""
    shown = top / "shown"
    shown.mkdir()
    home = top / "home"
    target = {"root": "/etc", "socket": engine.url.removeprefix("unix://"), "agent": str(home)}[
        kind
    ]
    (shown / "link").symlink_to(target)
    async with a_box(engine, home, allowed_roots=str(shown)) as box:
        local = box.run().places.task / "local"
        local.mkdir(parents=True)
        (local / "link").symlink_to(target)
        for source in (f"{shown}/link", "local/link", f"{shown}/link/passwd", "local/link/passwd"):
            with pytest.raises(StartRefused):
                await box.start(volumes=[f"{source}:/e"])
        assert box.containers() == []


async def test_a_folder_with_the_engines_socket_is_not_mounted(
    engine: OwnEngine, top: Path
) -> None:
    """An allowed root that holds the engine's socket does not give it away; nor does a socket or a pipe in it."""
    folder = Path(engine.url.removeprefix("unix://")).parent
    os.mkfifo(top / "pipe")
    async with a_box(engine, top / "home", allowed_roots=f"{folder},{top}") as box:
        for source in (
            folder,
            folder.parent,
            Path(engine.url.removeprefix("unix://")),
            top / "pipe",
            top,
        ):
            with pytest.raises(StartRefused):
                await box.start(volumes=[f"{source}:/e"])


async def test_a_swap_between_check_and_mount_changes_nothing(
    engine: OwnEngine, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that becomes a link after it was checked is mounted as it was checked."""
    async with a_box(engine, top) as box:
        local = box.run().places.task / "local"
        (local / "dir").mkdir(parents=True)
        (local / "dir" / "mine").touch()
        held = MountPins.hold

        def swapping(pins: MountPins, fd: int, path: Path) -> str:
            found = held(pins, fd, path)
            if path != local / "dir":
                return found
            (local / "dir").rename(local / "old")
            (local / "dir").symlink_to("/etc")
            return found

        monkeypatch.setattr(MountPins, "hold", swapping)
        end = await box.ended("ls /e", volumes=["local/dir:/e"])
        assert end.code == 0
        assert box.output() == "mine\n"


async def test_a_swap_while_walking_is_refused(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link put in the way after links were resolved is not followed."""
    (top / "shown" / "dir").mkdir(parents=True)
    settings = DockerSettings(allowed_roots=str(top / "shown"))
    real = os.path.realpath

    def swapped(path: Any, **more: Any) -> str:
        found = real(path, **more)
        if str(path).endswith("/dir") and not (top / "shown" / "dir").is_symlink():
            (top / "shown" / "dir").rmdir()
            (top / "shown" / "dir").symlink_to("/etc")
        return found

    from services.agent.drivers.driver import DriverRun
    from services.agent.executor.data_dir import DataDir
    from shared.jobspec.drivers.docker import DockerMount

    home = DataDir(top / "home", "n1")
    run = DriverRun(alloc_id=ALLOC, task="main", number=1, places=home.places(ALLOC, "main"))
    sources = MountSources(settings, home.top, run, MountPins(top / "pins"))
    monkeypatch.setattr(os.path, "realpath", swapped)
    with pytest.raises(StartRefused, match="is a link"):
        sources.source(
            DockerMount(path="m", kind="bind", source=str(top / "shown" / "dir"), target="/e")
        )
    home.close()


@pytest.mark.parametrize("swap", ["mkfifo $L", "ln -s /alloc/data/target $L", "mkdir $L"])
async def test_a_log_that_is_no_file_is_not_written_through(
    engine: OwnEngine, top: Path, swap: str
) -> None:
    """A pipe, a link or a folder that a task puts in the place of its log costs its own output alone."""
    async with a_box(engine, top) as box:
        script = f"L=/alloc/logs/main.stdout.0; rm -f $L; {swap}; echo through; echo err >&2"
        end = await box.ended(script)
        assert end.code == 0
        assert box.output("stderr") == "err\n"
        log = box.run().places.stdout
        assert not log.is_file() or log.is_symlink()
        assert not (box.run().places.shared / "data" / "target").exists()


async def test_the_folder_of_logs_cannot_be_moved_away(engine: OwnEngine, top: Path) -> None:
    """From inside, the folder that the agent writes logs into stays where it is."""
    async with a_box(engine, top) as box:
        await box.ended(
            "mv /alloc/logs /alloc/old && echo moved; rm -rf /alloc/logs; echo still here"
        )
        assert "moved" not in box.output()
        assert box.run().places.stdout.parent.is_dir()
        assert not box.run().places.stdout.parent.is_symlink()


async def test_secrets_stay_with_their_task(engine: OwnEngine, top: Path) -> None:
    """One task's secrets and environment are not in another's, not in labels, and not in the agent's words."""
    async with a_box(engine, top) as box:
        secrets = box.run().places.task / "secrets"
        secrets.mkdir(parents=True)
        (secrets / "key").write_text("s3cr3t-file\n")
        handle = await box.start("cat /secrets/key; sleep 300", launch_env={"K": "s3cr3t-env"})
        await level(lambda: "s3cr3t-file" in box.output())
        script = "env; ls -R /secrets /alloc /local; cat /alloc/../main/secrets/key; sleep 0.1"
        other = await box.driver.start(box.run(task="other"), launch(script))
        await asyncio.wait_for(box.driver.wait(other), WAIT_S)
        assert "s3cr3t" not in box.output(task="other")
        labels = str([one.labels for one in box.containers()])
        kept = b"".join(path.read_bytes() for path in (top / "runs").rglob("*") if path.is_file())
        assert "s3cr3t" not in labels + str(box.told) + kept.decode(errors="replace")
        await box.driver.stop(handle)
