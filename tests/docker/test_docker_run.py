"""driver docker on a real engine: start, environment, output, limits, signals, ends."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from services.agent.drivers.driver import StartRefused, recorded_signals
from shared.core.runtime.agent_messages import TaskNetwork
from tests.bounds import level
from tests.command_output import run_command
from tests.docker.box import a_box, status
from tests.docker.engine import OwnEngine

pytestmark = pytest.mark.asyncio

#: A device that no container has by itself.
DEVICE = next(
    (one for one in ("/dev/fuse", "/dev/loop-control", "/dev/net/tun") if Path(one).exists()),
    "/dev/kmsg",
)


async def test_a_container_runs_and_stops(engine: OwnEngine, top: Path) -> None:
    """A container runs under its pid, says what it says into the task's log, and ends by its kill signal."""
    async with a_box(engine, top) as box:
        script = (
            'trap "echo bye; exit 0" TERM; echo hello; echo oops >&2; while :; do sleep 0.1; done'
        )
        handle = await box.start(script)
        assert status(handle.pid)
        await level(lambda: "hello" in box.output() and "oops" in box.output("stderr"))
        await box.driver.signal(handle, "")
        end = await box.driver.wait(handle)
        assert (end.code, end.signal) == (0, 0)
        assert box.output() == "hello\nbye\n"
        assert box.output("stderr") == "oops\n"
        assert box.containers() == []


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [
        ("exit 0", 0, 0),
        ("exit 3", 3, 0),
        ("sleep 9 & kill -9 $!; wait $!", 137, 0),
        ("sleep 9 & kill -15 $!; wait $!", 143, 0),
    ],
)
async def test_an_end_is_what_it_was(
    engine: OwnEngine, top: Path, script: str, code: int, number: int
) -> None:
    """Exit codes arrive as they were; a code above 128 of its own is no signal."""
    async with a_box(engine, top) as box:
        end = await box.ended(script)
        assert (end.code, end.signal) == (code, number)


async def test_the_environment_is_nomads(engine: OwnEngine, top: Path) -> None:
    """Directories are where Nomad has them inside; references are resolved; the agent's environment is not there."""
    async with a_box(engine, top) as box:
        end = await box.ended(
            "env; pwd; cat /local/x; echo data > /alloc/data/y; id -u; hostname; echo $0 $1",
            args=["-c", "env; pwd; echo $0; touch /alloc/data/y; touch /local/z; id -u; hostname", "${MINE}"],
            work_dir="/tmp",
            hostname="inside",
            launch_user="web",
            launch_env={"MINE": "${NOMAD_TASK_DIR}/k", "NOMAD_JOB_ID": "j"},
        )  # fmt: skip
        assert end.code == 0 or "Permission denied" in box.output("stderr")
        lines = box.output().splitlines()
        for line in (
            "NOMAD_ALLOC_DIR=/alloc",
            "NOMAD_TASK_DIR=/local",
            "NOMAD_SECRETS_DIR=/secrets",
        ):
            assert line in lines
        assert {"MINE=/local/k", "/tmp", "/local/k", "1000", "inside"} <= set(lines)
        assert not any("CARAVAN" in line or "PYTEST" in line for line in lines)


async def test_limits_are_the_reservation(engine: OwnEngine, top: Path) -> None:
    """Memory, memory_max, shares, a hard limit, pids and open files are what the job asked for."""
    async with a_box(engine, top) as box:
        handle = await box.start(
            cpu_hard_limit=True,
            ulimit=[{"nofile": "100:200"}],
            pids_limit=50,
            shm_size=1 << 20,
            launch_memory_max_mib=96,
            launch_cpu_mhz=500,
        )
        host = box.containers()[0].attrs["HostConfig"]
        assert (host["Memory"], host["MemoryReservation"]) == (96 << 20, 64 << 20)
        assert (host["CpuShares"], host["CpuPeriod"], host["CpuQuota"]) == (500, 100_000, 25_000)
        assert (host["PidsLimit"], host["ShmSize"]) == (50, 1 << 20)
        said = await run_command(box.driver, handle, ("sh", "-c", "ulimit -Hn"))
        assert said.stdout.split() == [b"200"]
        assert host["Ulimits"] == [{"Name": "nofile", "Soft": 100, "Hard": 200}]


async def test_out_of_memory_is_called_so(engine: OwnEngine, top: Path) -> None:
    """A container that needs more than its limit is killed, and its end says why."""
    async with a_box(engine, top) as box:
        end = await box.ended("x=$(yes | head -c 200000000); echo ${#x}", launch_memory_mib=16)
        assert end.code == 137
        assert end.signal == 9
        assert "OOM" in end.reason


async def test_a_tasks_path_adds_to_the_images(engine: OwnEngine, top: Path) -> None:
    """A reference to a variable of the image means its value there."""
    async with a_box(engine, top) as box:
        await box.ended("echo $PATH", launch_env={"PATH": "${PATH}:/opt/own"})
        assert box.output().strip().endswith("/bin:/opt/own") and "$" not in box.output()


async def test_a_forced_kill_is_not_the_kernels(engine: OwnEngine, top: Path) -> None:
    """After a child was killed for lack of memory a container that is stopped was not killed by the kernel."""
    async with a_box(engine, top) as box:
        # One process alone asks for memory: of two the kernel may kill the larger one, and then the first of the
        # container for what the other still asks.
        script = "sh -c 'x=x; while :; do x=$x$x; done'; echo survived; sleep 300"
        handle = await box.start(script, launch_memory_mib=16)
        waiting = asyncio.ensure_future(box.driver.wait(handle))
        await level(lambda: "survived" in box.output())
        await box.driver.stop(handle)
        end = await waiting
        assert (end.code, end.signal) == (137, 9)
        assert end.reason == "a child process was killed at the memory limit"


async def test_a_kill_from_outside_is_a_signal(engine: OwnEngine, top: Path) -> None:
    """A container that is killed with the engine's own command was ended by that signal."""
    async with a_box(engine, top) as box:
        handle = await box.start()
        waiting = asyncio.ensure_future(box.driver.wait(handle))

        def is_heard() -> bool:
            """The engine's events arrive from some moment after the start on."""
            engine.client.api.kill(handle.id, "SIGURG")
            return signal.SIGURG in recorded_signals(handle.directory)

        await level(is_heard)
        await asyncio.to_thread(engine.client.api.kill, handle.id, "SIGKILL")
        end = await waiting
        assert (end.code, end.signal) == (137, 9)


async def test_a_short_command_with_a_terminal_ends_well(engine: OwnEngine, top: Path) -> None:
    """A command that ends before its terminal has its size is no failure."""
    async with a_box(engine, top) as box:
        handle = await box.start()
        for _ in range(6):
            session = await box.driver.exec_stream(handle, ("true",), tty=True)
            await session.resize(30, 100)
            while (await session.read())[1]:
                pass
            assert await session.wait() == 0
            await session.close()


async def test_hardened_by_default(engine: OwnEngine, top: Path) -> None:
    """Capabilities are the short list, no new privileges, own namespaces, a bounded number of processes."""
    async with a_box(engine, top) as box:
        handle = await box.start(readonly_rootfs=True, cap_drop=["chown"])
        text = status(handle.pid)
        assert "NoNewPrivs:\t1" in text
        bounding = int(text.split("CapBnd:\t")[1].split()[0], 16)
        assert not bounding & (1 << 21 | 1 << 12 | 1 << 13 | 1 << 0), (
            "SYS_ADMIN, NET_ADMIN, NET_RAW, CHOWN"
        )
        assert bounding & (1 << 10), "NET_BIND_SERVICE"
        host = box.containers()[0].attrs["HostConfig"]
        assert host["PidsLimit"] == 4096
        assert (host["PidMode"], host["UTSMode"], host["IpcMode"]) == ("", "", "private")
        said = await run_command(box.driver, handle, ("touch", "/etc/x"))
        assert said.code != 0


async def test_ports_are_published(engine: OwnEngine, top: Path) -> None:
    """A port of the group is published at the node's port, to the port inside, by label and by the old map."""
    async with a_box(engine, top) as box:
        handle = await box.start(
            'echo port=$NOMAD_PORT_http; while :; do echo -e "HTTP/1.0 200 OK\\r\\n\\r\\nhere" | nc -l -p 8080; done',
            ports=["http", "plain"],
            port_map=[{"old": 90}],
            launch_ports={"http": (21_001, 8080), "plain": (21_002, 0), "old": (21_003, 0)},
        )
        await level(lambda: "port=8080" in box.output())
        bound = box.containers()[0].attrs["HostConfig"]["PortBindings"]
        assert bound["8080/tcp"][0]["HostPort"] == "21001"
        assert bound["21002/tcp"][0]["HostPort"] == "21002"
        assert bound["90/udp"][0]["HostPort"] == "21003"
        ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:21001/', timeout=2).read())"
        await level(lambda: "here" in engine.run_inside(sys.executable, "-c", ask).stdout)
        assert handle.pid


async def test_a_groups_network_is_followed(engine: OwnEngine, top: Path) -> None:
    """Host name, resolver, ports and the address of a network by name reach the container."""
    network = TaskNetwork(
        hostname="web-1", dns_servers=("192.0.2.53",), addresses={"in": "127.0.0.1"}
    )
    async with a_box(engine, top) as box:
        await box.start(
            "hostname; cat /etc/resolv.conf; echo port=$NOMAD_PORT_in; sleep 300",
            launch_network=network,
            launch_ports={"in": (21_011, 90)},
            ports=["in"],
        )
        await level(lambda: "port=90" in box.output())
        assert "web-1" in box.output() and "192.0.2.53" in box.output()
        bound = box.containers()[0].attrs["HostConfig"]["PortBindings"]
        assert bound["90/tcp"] == [{"HostIp": "127.0.0.1", "HostPort": "21011"}]


async def test_reserved_devices_can_be_opened_and_no_other(engine: OwnEngine, top: Path) -> None:
    """The device files of what a task reserved are in its container; another's cannot even be made."""
    async with a_box(engine, top) as box:
        with_it = await box.ended(f"exec 3<{DEVICE}", launch_device_paths=(DEVICE,))
        without = await box.ended(f"exec 3<{DEVICE}", number=2)
    assert (with_it.code, without.code == 0) == (0, False)


async def test_a_port_nobody_has_is_named(engine: OwnEngine, top: Path) -> None:
    """A label that the group does not have is refused, with those that it has."""
    async with a_box(engine, top) as box:
        with pytest.raises(StartRefused, match=r"no port 'htp' \(it has: http\)"):
            await box.start(ports=["htp"], launch_ports={"http": (21_004, 0)})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"image": "no-such/image:1"}, "is not present and pulling is disabled"),
        ({"command": "no-such-program"}, "no-such-program"),
        ({"comand": "x"}, "did you mean command"),
        ({"network_mode": "nowhere"}, "is not allowed on this node"),
        ({"launch_user": "nobody-here"}, "nobody-here"),
    ],
)
async def test_a_start_that_cannot_work_says_why(
    engine: OwnEngine, top: Path, options: dict[str, object], says: str
) -> None:
    """A start that no retry mends is refused with its reason, and leaves no container."""
    async with a_box(engine, top, allow_pull=False) as box:
        with pytest.raises(StartRefused) as caught:
            await box.start(**options)
        assert says in str(caught.value)
        assert not caught.value.recoverable
        assert box.containers() == []


async def test_an_image_that_cannot_be_pulled(engine: OwnEngine, top: Path) -> None:
    """A pull is a task event, its failure says why, and the next start does not ask the registry again at once."""
    async with a_box(engine, top) as box:
        with pytest.raises(StartRefused, match="pull failed") as caught:
            await box.start(image="127.0.0.1:1/nothing:1", image_pull_timeout="20s")
        assert caught.value.recoverable
        assert ("Driver", "Downloading image 127.0.0.1:1/nothing:1") in box.told
        with pytest.raises(StartRefused, match="next attempt in"):
            await box.start(image="127.0.0.1:1/nothing:1", number=2)


async def test_exec_and_stats_look_inside(engine: OwnEngine, top: Path) -> None:
    """A command runs inside with its code and both outputs; a slow one is killed; statistics are there."""
    async with a_box(engine, top) as box:
        handle = await box.start("echo up; sleep 300", launch_env={"A": "b"})
        said = await run_command(box.driver, handle, ("sh", "-c", "echo $A; echo no >&2; exit 4"))
        assert (said.code, said.stdout, said.stderr) == (4, b"b\n", b"no\n")
        with pytest.raises(TimeoutError):
            await run_command(box.driver, handle, ("sleep", "77"), 1.0)
        await level(lambda: "sleep 77" not in " ".join(
            " ".join(row) for row in box.containers()[0].top()["Processes"]))  # fmt: skip
        used = await box.driver.stats(handle)
        assert used.memory_bytes > 0
        assert used.cpu_ns > 0


async def test_a_terminal(engine: OwnEngine, top: Path) -> None:
    """A command with a terminal reads what is typed, knows its size, and its code comes back."""
    async with a_box(engine, top) as box:
        handle = await box.start()
        session = await box.driver.exec_stream(handle, ("sh",), tty=True)
        await session.resize(33, 111)
        await session.write(b"stty size; tty; exit 5\n")
        seen = b""
        while True:
            source, data = await session.read()
            if not data:
                break
            assert source == 1
            seen += data
        assert b"33 111" in seen
        assert b"/dev/pts/" in seen
        assert await session.wait() == 5
        await session.close()


async def test_a_session_without_terminal_ends_with_its_input(engine: OwnEngine, top: Path) -> None:
    """Input is passed on to its end, and both outputs are separate; closing ends what still runs."""
    async with a_box(engine, top) as box:
        handle = await box.start()
        session = await box.driver.exec_stream(handle, ("sh", "-c", "cat; echo e >&2"), tty=False)
        await session.write(b"typed")
        await session.write(b"")
        seen = {1: b"", 2: b""}
        while (found := await session.read())[1]:
            seen[found[0]] += found[1]
        assert seen == {1: b"typed", 2: b"e\n"}
        assert await session.wait() == 0
        await session.close()
        other = await box.driver.exec_stream(handle, ("sleep", "78"), tty=True)
        await other.close()
        await level(lambda: "sleep 78" not in str(box.containers()[0].top()["Processes"]))


async def test_health_is_told(engine: OwnEngine, top: Path) -> None:
    """What a container's own health check finds stands in the task's events."""
    check = {"Test": ["CMD-SHELL", "test -e /tmp/ok"], "Interval": 200_000_000, "Retries": 1}
    made = engine.client.api.create_container_from_config({"Image": "caravan-test-box:1"})
    engine.client.api.commit(made["Id"], "caravan-test-box", "health", conf={"Healthcheck": check})
    engine.client.api.remove_container(made["Id"])
    async with a_box(engine, top) as box:
        handle = await box.start("touch /tmp/ok; sleep 300", image="caravan-test-box:health")
        waiting = asyncio.ensure_future(box.driver.wait(handle))
        await level(lambda: ("Health", "container is healthy") in box.told)
        await run_command(box.driver, handle, ("rm", "/tmp/ok"))
        await level(lambda: ("Health", "container is unhealthy") in box.told)
        await box.driver.stop(handle)
        assert (await waiting).signal == 9


async def test_the_fingerprint_knows_the_engine(engine: OwnEngine, top: Path) -> None:
    """A node says which engine it has; without one, or when it is switched off, nothing."""
    async with a_box(engine, top) as box:
        found = box.driver.fingerprint()
        assert found["driver.docker"] == "1"
        assert found["driver.docker.version"][0].isdigit()
        assert found["driver.docker.cgroup_version"] in {"1", "2"}
    async with a_box(engine, top, enabled=False) as box:
        assert box.driver.fingerprint() == {}
