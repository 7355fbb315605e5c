"""Device plugins of operators: real programs that print, hang, end and lie; and tasks that need what they offer."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from schemas.nodes import Instance, Pool
from services.agent.devices.device_plugins import DevicePlugins, with_devices, without_repeats
from services.agent.devices.plugin_process import PluginLimits
from services.agent.drivers.driver import StartRefused
from shared.core.runtime.agent_messages import TaskLaunch
from shared.errors import ConfigInvalid
from tests.bounds import until
from tests.integration.device_programs import CARDS, QUICK, program

HELD = TaskLaunch(devices={"device.card": ("c0",)})


@contextmanager
def plugins(folder: Path, limits: PluginLimits = QUICK) -> Iterator[DevicePlugins]:
    """The plugins of a folder, started."""
    found = DevicePlugins(str(folder), limits=limits)
    try:
        found.fingerprint()
        yield found
    finally:
        found.close()


def unhealthy(found: DevicePlugins) -> list[str]:
    """Why its devices are unhealthy, in their order."""
    return [one.unhealthy for pool in found.pools() for one in pool.instances]


def test_what_a_program_prints_is_offered(tmp_path: Path) -> None:
    """Groups become pools, quantities texts with their unit; the node says which plugins run."""
    program(tmp_path / "p", f"echo '{CARDS}'; exec sleep 600")
    with plugins(tmp_path / "p", PluginLimits()) as found:
        assert found.fingerprint() == {"plugins.device.cards": "1"}
        assert found.pools() == (
            Pool(
                name="device.card",
                vendor="acme",
                model="x1",
                attributes={"fast": "true", "lanes": "16", "memory": "8 GiB"},
                instances=(Instance(id="c0", group=1), Instance(id="c1")),
            ),
        )


def test_a_device_that_is_unhealthy_is_offered_with_its_reason(tmp_path: Path) -> None:
    """The next line says so; it is the same device."""
    sick = CARDS.replace('"id": "c1"', '"id": "c1", "healthy": false, "reason": "too  hot"')
    program(
        tmp_path / "p", f"echo '{CARDS}'; read x < {tmp_path}/go; echo '{sick}'; exec sleep 600"
    )
    os.mkfifo(tmp_path / "go")
    with plugins(tmp_path / "p", PluginLimits()) as found:
        assert unhealthy(found) == ["", ""]
        (tmp_path / "go").write_text("go\n")
        until(lambda: unhealthy(found) == ["", "too hot"], "the card is unhealthy")


def test_a_program_that_ends_or_hangs_is_started_again(tmp_path: Path) -> None:
    """Meanwhile its devices are unhealthy with the reason; they are healthy again with the first line."""
    count = f"echo x >> {tmp_path}/starts; n=$(wc -l < {tmp_path}/starts)"
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    program(
        tmp_path / "p",
        f"{count}; [ $n -eq 2 ] && {{ {wait}; }}; echo '{CARDS}'\n"
        f"case $n in 1) exit 3;; *) while :; do sleep 0.2; echo '{CARDS}'; done;; esac",
    )
    with plugins(tmp_path / "p") as found:
        until(lambda: any("it ended with 3" in one for one in unhealthy(found)), "its end is said")
        until(lambda: any("no line within 1 s" in one for one in unhealthy(found)), "it hangs")
        assert unhealthy(found)[0].startswith("device plugin cards: ")
        (tmp_path / "go").touch()
        until(lambda: unhealthy(found) == ["", ""], "it is back")
        assert len((tmp_path / "starts").read_text().split()) >= 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("no json", "its line cannot be read"),
        ("{}", 'its line has neither "devices" nor "error"'),
        ('{"error": "no\\ndriver"}', "no driver"),
        (CARDS.replace("acme", "a/b"), "devices[0].vendor: 'a/b'"),
        (CARDS.replace("GiB", "stone"), "devices[0].attributes.memory.unit: 'stone'"),
        (CARDS.replace("c1", "c0"), "instance 'c0' is listed twice"),
        (CARDS.replace('"group"', '"gruop"'), "gruop"),
        (CARDS.replace("c1", "c" * 200), "has an id of 200 characters"),
    ],
)
def test_a_line_that_is_wrong_is_refused_whole(tmp_path: Path, line: str, said: str) -> None:
    """What was known before stays, unhealthy, with a reason that names the field."""
    program(
        tmp_path / "p",
        f"cat <<'END'\n{CARDS}\nEND\nsleep 0.4\ncat <<'END'\n{line}\nEND\nexec sleep 9",
    )
    with plugins(tmp_path / "p") as found:
        until(lambda: any(said in one for one in unhealthy(found)), f"{said} is the reason")
        assert [one.id for one in found.pools()[0].instances] == ["c0", "c1"]


def test_a_program_that_prints_without_end_is_ended(tmp_path: Path) -> None:
    """A line has a bound; so has the number of ids that a program can name in its life."""
    many = (
        "n=0; while :; do n=$((n+1)); s=''; i=0; while [ $i -lt 400 ]; do i=$((i+1)); "
        's="$s,{\\"id\\": \\"$n-$i\\"}"; done; '
        'echo "{\\"devices\\": [{\\"vendor\\": \\"a\\", \\"type\\": \\"t\\", \\"name\\": \\"n\\", '
        '\\"instances\\": [${s#,}]}]}"; sleep 0.3; done'
    )
    program(tmp_path / "p", f"echo '{CARDS}'; sleep 0.4; yes x | tr -d '\\n'", name="long")
    program(tmp_path / "p", many, name="many")
    with plugins(tmp_path / "p") as found:
        until(lambda: any("262144 bytes" in one for one in unhealthy(found)), "a line is bounded")
        until(lambda: any("more than 1024 devices" in one for one in unhealthy(found)), "ids are")


def test_a_program_that_another_user_can_change_is_not_run(tmp_path: Path) -> None:
    """Nor is a link; the folder is an absolute path. A program that comes or goes is seen at the next look."""
    path = program(tmp_path / "p", f"touch {tmp_path}/ran; exec sleep 600")
    path.chmod(0o777)
    (tmp_path / "p" / "link").symlink_to(path)
    with plugins(tmp_path / "p") as found:
        assert found.fingerprint() == {} and not (tmp_path / "ran").exists()
        program(tmp_path / "p", f"echo '{CARDS}'; exec sleep 600", name="good")
        assert found.fingerprint() == {"plugins.device.good": "1"}
        until(lambda: len(found.pools()) == 1, "it is there")
        (tmp_path / "p" / "good").unlink()
        assert (found.fingerprint(), found.pools()) == ({}, ())
    with pytest.raises(ConfigInvalid, match="CARAVAN_AGENT_DEVICE_PLUGINS"):
        DevicePlugins("here")


def reserve(found: DevicePlugins, driver: str = "exec", launch: TaskLaunch = HELD) -> TaskLaunch:
    """Reserve, and show what the driver of a task is given."""
    said = asyncio.run(found.reserve(driver, launch))
    changed = with_devices(launch, said)
    return TaskLaunch(env=said.env, volumes=changed.volumes, device_paths=changed.device_paths)


def test_a_task_gets_what_its_devices_need(tmp_path: Path) -> None:
    """Variables, mounts and device files, for the ids that it holds."""
    answer = (
        'printf \'{"env": {"CARDS": "%s"}, "mounts": [{"source": "/opt/acme", "target": "/opt/acme"}], '
        '"devices": ["/dev/acme0"]}\' "$*"'
    )
    program(tmp_path / "p", f"echo '{CARDS}'; exec sleep 600", answer)
    with plugins(tmp_path / "p", PluginLimits()) as found:
        both = TaskLaunch(devices={"device.card": ("c0", "c1"), "seat": ("s1",)})
        got = reserve(found, launch=both)
        assert got.env == {"CARDS": "c0 c1"} and got.device_paths == ("/dev/acme0",)
        assert [(one.path, one.target, one.read_only) for one in got.volumes] == [
            ("/opt/acme", "/opt/acme", True)
        ]
        assert reserve(found, "raw_exec").volumes == ()
        with pytest.raises(StartRefused, match="driver qemu cannot mount /opt/acme"):
            reserve(found, "qemu")
        assert reserve(found, launch=TaskLaunch()).env == {}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("exit 4", "it ended with 4"),
        ('echo \'{"error": "c0 is taken"}\'', "device plugin cards: c0 is taken"),
        ("echo nonsense", "its line cannot be read"),
        ('echo \'{"env": {"NOMAD_TOKEN": "x"}}\'', "env: 'NOMAD_TOKEN'"),
        ('echo \'{"devices": ["/etc/shadow"]}\'', "'/etc/shadow' is not a path below /dev"),
        ('echo \'{"devices": ["/dev/../etc/shadow"]}\'', "is not a path below /dev"),
        ('echo \'{"mounts": [{"source": "/a/../b", "target": "/c"}]}\'', "mounts[0].source"),
        ("yes", "it gave more than 65536 bytes"),
    ],
)
def test_an_answer_that_is_wrong_fails_the_start(tmp_path: Path, answer: str, said: str) -> None:
    """With the reason, under the restart policy."""
    program(tmp_path / "p", f"echo '{CARDS}'; exec sleep 600", answer)
    with plugins(tmp_path / "p", PluginLimits()) as found:
        with pytest.raises(StartRefused) as refused:
            reserve(found)
        assert said in str(refused.value) and refused.value.recoverable


def test_an_unknown_device_fails_the_start(tmp_path: Path) -> None:
    """An id that neither a plugin nor the node's file has; custom resources are not looked up."""
    program(tmp_path / "p", f"echo '{CARDS}'; exec sleep 600")
    with plugins(tmp_path / "p", PluginLimits()) as found:
        found.offered = lambda: (Pool(name="device.gpu", instances=(Instance(id="/dev/g0"),)),)
        with pytest.raises(StartRefused, match=r"device.card 'c9' is unknown"):
            reserve(found, launch=TaskLaunch(devices={"device.card": ("c9",)}))
        known = TaskLaunch(devices={"device.gpu": ("/dev/g0",), "seat": ("s1",)})
        assert reserve(found, launch=known).env == {}


def test_the_devices_of_a_plugin_that_is_gone_fail_the_start(tmp_path: Path) -> None:
    """Also of the last one: no task starts without a device that it was given."""
    (tmp_path / "p").mkdir()
    with plugins(tmp_path / "p", PluginLimits()) as found:
        with pytest.raises(StartRefused, match=r"device.card 'c0' is unknown"):
            reserve(found, launch=TaskLaunch(devices={"device.card": ("c0",)}))
        assert reserve(found, launch=TaskLaunch(devices={"seat": ("s1",)})).env == {}


def test_a_program_ends_with_its_agent(tmp_path: Path) -> None:
    """After kill -9, too."""
    program(tmp_path / "p", f"echo $$ > {tmp_path}/pid; echo '{CARDS}'; exec sleep 600")
    code = (
        "import sys, time; from services.agent.devices.device_plugins import DevicePlugins\n"
        "DevicePlugins(sys.argv[1]).fingerprint(); print('up', flush=True); time.sleep(600)"
    )
    agent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "p")], stdout=subprocess.PIPE
    )
    assert agent.stdout is not None
    assert b"up\n" in iter(agent.stdout.readline, b"")
    pid = int((tmp_path / "pid").read_text())
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    agent.stdout.close()
    until(lambda: not _runs(pid), "it ended")


def _runs(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def test_what_is_offered_twice_is_taken_once() -> None:
    """The file's entry counts before a plugin's: an id twice, or two kinds of one name, would refuse the node."""
    listed = Pool(name="device.card", instances=(Instance(id="c0"),))
    again = Pool(name="device.card", model="x", instances=(Instance(id="c0"), Instance(id="c1")))
    total = Pool(name="device.card", amount=5)
    assert without_repeats((listed, again, total)) == (
        listed,
        Pool(name="device.card", model="x", instances=(Instance(id="c1"),)),
    )


def test_devices_that_are_all_gone_hide_no_others() -> None:
    """A plugin without a device of a type now does not take those of its other models and of other plugins away."""
    none = Pool(name="device.card", model="x")
    some = Pool(name="device.card", model="y", instances=(Instance(id="c0"),))
    assert some in without_repeats((none, some))
    assert some in without_repeats((some, none))
