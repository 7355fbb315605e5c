"""An operator's hands on a real cluster: a real agent, raw_exec tasks, and the command line as the operator."""

import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.node_rpc import ExecAsk, Frame, LogsAsk, StatsAnswer, StatsAsk
from services.cli.runtime.node_client import CliNodeStream, request_node
from services.cli.runtime.output import CliError
from shared.bus.connection.node_stream import new_session_id
from shared.bus.connection.public_client import Client
from shared.protocol import subjects
from tests.bounds import WAIT_S
from tests.bus.toys import Bus, run, until
from tests.bus.up import Up

pytestmark = pytest.mark.bus

JOB = """job "%s" {
  type = "%s"
  datacenters = ["*"]
  group "g" {
    count = %d
    task "server" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args = ["-c", "%s"]
      }
      logs {
        max_files = 5
        max_file_size = 1
      }
      resources {
        cpu = 20
        memory = 20
      }
    }
  }
}
"""
SLEEPS = "echo begun; exec sleep 10000"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Two nodes."""
    one = Up(tmp_path_factory.mktemp("hands"), "--agents", "2", one_process=True)
    yield one
    assert one.end() == 0


def start(
    up: Up, folder: Path, name: str, script: str = SLEEPS, count: int = 1, kind: str = "service"
) -> str:
    """Run a job until all of it runs; returns the name of its first allocation."""
    path = folder / f"{name}.nomad.hcl"
    path.write_text(JOB % (name, kind, count, script))
    up.documented("job", "run", "--detach", str(path))
    wanted = 2 if kind == "sysbatch" else count
    up.until(lambda: states(up, name).count("running") >= wanted, f"{name} runs")
    return f"{name}.g[0]"


def allocs(up: Up, name: str) -> list[dict[str, Any]]:
    return up.allocs(name)


def states(up: Up, name: str) -> list[str]:
    return [one["client_status"] for one in allocs(up, name)]


def said(up: Up, *words: str, given: bytes = b"") -> tuple[int, bytes, bytes]:
    """A command for people: exit code, stdout, stderr."""
    done = subprocess.run(
        up._command(*words),
        env=up.env,
        input=given,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


# ---- walls ----


def test_an_agent_answers_for_no_other_node(bus: Bus) -> None:
    """31: n1 hears nothing of what n2 is asked, cannot ask n2 anything, and cannot answer for it."""

    async def story() -> None:
        errors: list[str] = []
        heard: list[bytes] = []
        async with (
            bus.client(bus.node_login("n1"), errors) as n1,
            bus.client(bus.node_login("n2")) as n2,
            bus.client("public") as anyone,
        ):
            await n1.listen(subjects.node_rpc("n2", "*"), lambda *_: heard.append(b"n1"))
            await n1.listen(subjects.NODE_RPC_ALL, lambda *_: heard.append(b"n1 all"))
            await n2.listen(
                subjects.node_rpc("n2", "*"),
                lambda _subject, reply, *_: n2.send(reply.decode(), b"n2 answers"),
            )
            await n1.flush()
            await n2.flush()
            n1.send(subjects.node_rpc("n2", "stats"), b"{}", b"_INBOX.node-n1.x")
            answer = await anyone.request_raw(subjects.node_rpc("n2", "stats"), b"{}")
            assert answer[1] == b"n2 answers"
            await n1.flush()
            assert heard == []
            assert len(errors) == 3

    run(story())


def test_public_reaches_nodes_by_nothing_but_hands(bus: Bus) -> None:
    """31: PUBLIC hears nothing that is asked, nothing of other accounts, and answers no one."""

    async def story() -> None:
        errors: list[str] = []
        heard: list[bytes] = []
        async with bus.client(bus.node_login("n1")) as n1, bus.client("public", errors) as anyone:
            await n1.listen(subjects.node_rpc("n1", "*"), lambda subject, *_: heard.append(subject))
            await n1.flush()
            for subject in (subjects.NODE_RPC_ALL, subjects.node_rpc("n1", "*"), "_R_.>"):
                await anyone.listen(subject, lambda *_: heard.append(b"public"))
            await anyone.flush()
            assert len(errors) == 3
            for subject in (subjects.node("n1"), subjects.heartbeat("n1"), "_INBOX.node-n1.x"):
                anyone.send(subject, b"{}")
            anyone.send(subjects.node_rpc("n1", "stats"), b"{}")
            await until(lambda: heard)
            assert heard == [b"hands.n1.stats"]

    run(story())


def test_an_answer_reaches_no_stream(bus: Bus) -> None:
    """32: who names a place of ours as reply subject has the agent's answer stored nowhere."""

    async def story() -> None:
        await bus.bootstrap()
        async with (
            bus.client(bus.node_login("n1")) as n1,
            bus.client("public") as thief,
            bus.client() as admin,
        ):
            heard: list[bytes] = []
            answered: list[bool] = []
            await admin.listen("log.>", lambda subject, *_: heard.append(subject))
            await admin.listen("cmd.>", lambda subject, *_: heard.append(subject))
            await admin.listen("node.*", lambda subject, *_: heard.append(subject))
            await n1.listen(
                subjects.node_rpc("n1", "*"),
                lambda _subject, reply, *_: answered.append(n1.send(reply.decode(), b"forged")),
            )
            await admin.flush()
            await n1.flush()
            traps = (
                subjects.log(1, "tx"),
                subjects.command("plan"),
                subjects.report("n1"),
                subjects.node("n2"),
            )
            for trap in traps:
                thief.send(subjects.node_rpc("n1", "stats"), b"{}", trap.encode())
            await until(lambda: len(answered) == len(traps))
            await n1.flush()
            await thief.flush()
            await admin.flush()
            assert heard == []

    run(story())


def test_a_node_that_is_away_is_named(bus: Bus) -> None:
    """Without an answer the error names the node, at once, for a question and for a stream."""

    async def story() -> None:
        async with Client(bus.server.client_url) as client:
            with pytest.raises(CliError, match="node n1: its agent does not answer") as fault:
                await request_node(client, "n1", "stats", StatsAsk(), answer=StatsAnswer)
            assert fault.value.code == "unavailable"
            ask = LogsAsk(alloc_id="a", task="t", session=new_session_id())
            async with CliNodeStream(client, "n1", "logs", ask) as stream:
                with pytest.raises(CliError, match="node n1: its agent does not answer"):
                    _ = [frame async for frame in stream.frames()]

    run(story())


# ---- looking ----


def test_logs_from_anywhere(up: Up, tmp_path: Path) -> None:
    """`alloc logs`, its keys, its tail, and what it says where there is nothing."""
    name = start(
        up,
        tmp_path,
        "talks",
        "for i in 1 2 3 4 5; do echo line $i; done; echo oops >&2; exec sleep 10000",
    )
    up.until(lambda: "line 5" in up.documented("alloc", "logs", name)["text"], "five lines")
    assert said(up, "alloc", "logs", "--tail", "2", name)[1] == b"line 4\nline 5\n"
    for words in (["alloc", "logs", name], ["job", "logs", "talks"]):
        assert said(up, *words, "--tail", "0") == (0, b"", b""), words
    assert up.documented("alloc", "logs", "--stderr", name)["text"] == "oops\n"
    code, answer = up.run("alloc", "logs", name, "nothing")
    assert code == 1 and answer["error"]["code"] == "not_found"


def test_a_follower_hears_everything_across_rotation(up: Up, tmp_path: Path) -> None:
    """`alloc logs -f` gives each line once, in order, through several files, and ends with the job's allocation."""
    lines = 60_000
    script = (
        f"i=0; while [ $i -lt {lines} ]; do i=$((i+1)); echo line number $i of many lines; done"
    )
    path = tmp_path / "much.nomad.hcl"
    path.write_text(JOB % ("much", "batch", 1, script))
    up.documented("job", "run", str(path))
    code, out, err = said(up, "alloc", "logs", "-f", "much.g[0]")
    assert (code, err) == (0, b"")
    assert out.splitlines() == [b"line number %d of many lines" % n for n in range(1, lines + 1)]


def test_files_of_an_allocation(up: Up, tmp_path: Path) -> None:
    """`alloc fs`: list, describe, print; and no way out."""
    script = (
        "head -c 600000 /dev/zero > local/big; echo hello > local/note; "
        "ln -s /etc/passwd local/way; exec sleep 10000"
    )
    name = start(up, tmp_path, "files", script)

    def names() -> set[str]:
        found = up.documented("alloc", "fs", "ls", name, "server/local")["files"]
        return {one["name"] for one in found}

    up.until(lambda: names() == {"big", "note", "way"}, "its files")
    assert up.documented("alloc", "fs", "stat", name, "server/local/big")["file"]["size"] == 600_000
    assert up.documented("alloc", "fs", "cat", name, "server/local/note")["text"] == "hello\n"
    assert said(up, "alloc", "fs", "cat", name, "server/local/big")[1] == bytes(600_000)
    for path in ("server/local/way", "../../agent.json", "server/secrets", "server/secrets/x"):
        code, answer = up.run("alloc", "fs", "cat", name, path)
        assert code == 1 and answer["error"]["code"] in {"refused", "invalid"}, path


def test_what_is_used_is_told(up: Up, tmp_path: Path) -> None:
    """`alloc stats` and `node status --stats` show each task that runs; SQL has its minutes."""
    name = start(up, tmp_path, "busy", "while :; do :; done")
    node = allocs(up, "busy")[0]["node"]

    def used() -> int:
        return up.documented("alloc", "stats", name)["tasks"][0]["cpu_millicores"]

    up.until(lambda: used() > 0, "its processor time")
    one = up.documented("alloc", "stats", name)["tasks"][0]
    assert one["task"] == "server" and one["memory_bytes"] > 0 and not one["problem"]
    assert one["asked_cpu_mhz"] == one["asked_memory_mib"] == 20

    def sampled() -> int:
        # An agent that has not sampled the task yet has no line of it.
        return sum(one["samples"] for one in up.documented("job", "usage", "busy")["tasks"])

    up.until(lambda: sampled() > 0, "the first sample")
    (line,) = up.documented("job", "usage", "busy")["tasks"]
    assert line["cpu_mhz"]["asked"] == 20 < line["cpu_mhz"]["suggested"]
    assert 0 < line["memory_mib"]["peak"] < line["memory_mib"]["suggested"]
    code, answer = up.run("node", "status", node, "--stats")
    assert code == 0
    assert one["alloc_id"] in {task["alloc_id"] for task in answer["stats"]["tasks"]}
    minutes = (
        "SELECT task, node_id, samples, cpu_peak_millicores FROM task_usage WHERE job_id = 'busy'"
    )

    def kept() -> list[dict[str, Any]]:
        code, answer = up.run("sql", minutes)
        assert code == 0, answer
        return [row for row in answer["rows"] if row["samples"] and row["cpu_peak_millicores"]]

    up.until(lambda: bool(kept()), "a minute that is over")
    assert {(row["task"], row["node_id"]) for row in kept()} == {("server", node)}
    up.documented("job", "stop", "busy")


# ---- exec ----


def test_exec_has_output_input_and_exit_code(up: Up, tmp_path: Path) -> None:
    """Both outputs apart, input to its end, the command's exit code as ours; in the task's directory."""
    name = start(up, tmp_path, "shell")
    assert said(up, "alloc", "exec", name, "--", "sh", "-c", "echo out; echo err >&2; exit 7") == (
        7,
        b"out\n",
        b"err\n",
    )
    much = os.urandom(300_000).hex().encode()
    code, out, _ = said(up, "alloc", "exec", "-i", name, "--", "cat", given=much)
    assert (code, out) == (0, much)
    answer = up.documented("alloc", "exec", name, "--", "pwd")
    assert answer["stdout"].endswith("/server\n") and answer["exit_code"] == 0
    code, out, err = said(up, "alloc", "exec", name, "--", "no-such-program")
    assert code == 127 and b"no-such-program" in err


def test_exec_floods_are_read_as_fast_as_they_are_taken(up: Up, tmp_path: Path) -> None:
    """Eight MiB arrive whole and in order: no more is on its way than the window holds."""
    name = start(up, tmp_path, "flood")
    code, out, _ = said(up, "alloc", "exec", name, "--", "sh", "-c", "seq 1 1200000")
    assert code == 0
    assert out == b"".join(b"%d\n" % n for n in range(1, 1_200_001))


def test_ctrl_c_ends_the_command(up: Up, tmp_path: Path) -> None:
    """Without a terminal, who is interrupted leaves no command behind."""
    name = start(up, tmp_path, "break")
    marker = tmp_path / "pid"
    command = up._command(
        "alloc", "exec", name, "--", "sh", "-c", f"echo $$ > {marker}; exec sleep 10000"
    )
    process = subprocess.Popen(
        command, env=up.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    up.until(lambda: marker.exists() and marker.read_text().endswith("\n"), "the command runs")
    pid = int(marker.read_text())
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 130
    up.until(lambda: not Path(f"/proc/{pid}").exists(), "the command has ended")


def test_exec_ends_with_its_task(up: Up, tmp_path: Path) -> None:
    """A task that is stopped takes the commands beside it along, and their client gets an error."""
    name = start(up, tmp_path, "ends")
    words = ("alloc", "exec", name, "--", "sh", "-c", "echo here; exec sleep 10000")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(up._command(*words), env=up.env, **pipes) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"here\n"
        up.documented("job", "stop", "ends")
        assert process.wait(WAIT_S) != 0
        assert b"ended" in process.stderr.read()


class Typist:
    """A command on a terminal of its own."""

    def __init__(self, up: Up, *words: str) -> None:
        self.ours, theirs = pty.openpty()
        self.size(30, 90)
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        self.process = subprocess.Popen(
            up._command(*words),
            env={**up.env, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        self.text = b""

    def size(self, rows: int, columns: int) -> None:
        ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: bytes) -> None:
        os.write(self.ours, text)

    def until(self, holds: Callable[[bytes], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not holds(self.text):
            assert time.monotonic() < deadline, (what, self.text)
            if select.select([self.ours], [], [], 0.2)[0]:
                try:
                    self.text += os.read(self.ours, 65536)
                except OSError:
                    break

    def end(self) -> int:
        code = self.process.wait(WAIT_S)
        after = termios.tcgetattr(self.theirs)
        assert after == self.before, "the terminal is as it was"
        os.close(self.theirs)
        os.close(self.ours)
        return code


def test_a_terminal_as_if_one_sat_there(up: Up, tmp_path: Path) -> None:
    """Keys arrive one by one, Ctrl-C is the command's, the size follows, the exit code comes back, all is restored."""
    name = start(up, tmp_path, "term")
    typist = Typist(up, "alloc", "exec", "-t", name, "--", "/bin/sh")
    typist.until(bool, "a prompt")
    typist.type(b"stty size; echo is''a-tty $(tty | cut -c1-9)\n")
    typist.until(lambda text: b"30 90" in text and b"isa-tty /dev/pts/" in text, "its size")
    # The command itself says that it is ready: it is the foreground process group by then, so Ctrl-C is sent to it.
    typist.type(b"sh -c \"echo re''ady; exec sleep 10000\"\n")
    typist.until(lambda text: b"ready\r\n" in text, "a command that stays")
    typist.type(b"\x03")
    typist.type(b"echo al''ive\n")
    typist.until(lambda text: b"alive\r\n" in text, "the shell behind Ctrl-C")
    assert typist.process.poll() is None
    typist.size(41, 123)
    typist.process.send_signal(signal.SIGWINCH)

    def asks(text: bytes) -> bool:
        if b"41 123" not in text:
            typist.type(b"stty size\n")
        return b"41 123" in text

    typist.until(asks, "the new size")
    typist.type(b"exit 9\n")
    assert typist.end() == 9


def test_a_killed_operator_leaves_the_terminal_as_it_was(up: Up, tmp_path: Path) -> None:
    """SIGTERM restores it, too, and the command ends."""
    name = start(up, tmp_path, "killed")
    typist = Typist(
        up, "alloc", "exec", "-t", name, "--", "/bin/sh", "-c", "echo pid $$ here; exec sleep 10000"
    )
    typist.until(lambda text: b"here" in text, "the command")
    pid = int(typist.text.split(b"pid ")[1].split()[0])
    typist.process.terminate()
    assert typist.end() == 128 + signal.SIGTERM
    up.until(lambda: not Path(f"/proc/{pid}").exists(), "the command ends when its client is gone")


def test_top_on_a_real_cluster(up: Up, tmp_path: Path) -> None:
    """It follows the log, shows the output of a task, goes back in time, and leaves the terminal as it was."""
    start(up, tmp_path, "seen", "echo from-$NOMAD_ALLOC_INDEX; exec sleep 10000")
    typist = Typist(up, "top")
    typist.until(lambda text: b"live" in text and b" seen " in text, "the jobs")
    typist.type(b"/")
    typist.until(lambda text: b"text that rows contain" in text, "the prompt")
    typist.type(b"seen\r")
    typist.until(lambda text: b"with seen" in text, "one row")
    typist.type(b"\r")
    typist.until(lambda text: b"seen.g[0]" in text and b" of seen" in text, "its allocation")
    typist.type(b"l")
    typist.until(lambda text: b"from-0" in text, "its output")
    typist.type(b"\x1b")
    typist.until(lambda text: text.rfind(b" of seen") > text.rfind(b"from-0"), "the table again")
    typist.type(b"w")
    typist.until(lambda text: b"seen.g is on node-" in text, "why it is there")
    typist.type(b"\x1b")
    typist.until(lambda text: text.rfind(b" of seen") > text.rfind(b"on node-"), "the table again")
    typist.type(b":")
    typist.until(lambda text: b"seq, time like" in text, "the prompt")
    typist.type(b"3\r")
    typist.until(lambda text: b"past  seq 3 of " in text, "the past")
    typist.type(b"q")
    assert typist.end() == 0
    typist = Typist(up, "top", "--at", "3")
    typist.until(lambda text: b"past  seq 3 of " in text, "the past at once")
    typist.process.terminate()
    assert typist.end() == 128 + signal.SIGTERM
    up.documented("job", "stop", "seen")


def test_sessions_are_bounded_and_bad_ones_refused(up: Up, tmp_path: Path) -> None:
    """A session without a proper name, a command without words, an unknown verb: each is an error at once."""
    start(up, tmp_path, "strange")
    one = allocs(up, "strange")[0]

    async def story() -> None:
        async with Client(up.client_url) as client:

            async def ask(verb: str, body: bytes) -> dict[str, Any]:
                answer = await client.request_bytes(subjects.node_rpc(one["node"], verb), body)
                return json.loads(answer)

            bare = ExecAsk(alloc_id=one["id"], task="server", session="short", command=("true",))
            assert (await ask("exec", msgspec.json.encode(bare)))["error"]["code"] == "invalid"
            twice = b'{"alloc_id":"a","alloc_id":"b"}'
            for verb in ("exec", "logs", "session", "fs_read", "fs_list", "stats", "nonsense"):
                found = await ask(verb, b"[]")
                assert found["error"]["code"] == "invalid", verb
                found = await ask(verb, twice)
                assert "duplicate key 'alloc_id'" in found["error"]["message"], verb
            wordless = msgspec.structs.replace(bare, session="a" * 32, command=())
            answer = await client.request_bytes(
                subjects.node_rpc(one["node"], "exec"), msgspec.json.encode(wordless)
            )
            assert msgspec.json.decode(answer, type=Frame).is_end
            gone = await ask("session", msgspec.json.encode({"session": "b" * 32}))
            assert gone["error"]["code"] == "not_found"

    run(story())


# ---- orders ----


def test_restart_and_signal(up: Up, tmp_path: Path) -> None:
    """A restart is another process and no failure; a signal arrives; a task that is not running is an error."""
    name = start(
        up, tmp_path, "orders", "trap 'echo got hup' HUP; echo begun; while :; do sleep 0.1; done"
    )
    before = up.documented("alloc", "status", name)["tasks"]["server"]
    assert up.documented("alloc", "signal", name)["tasks"] == ["server"]
    up.until(lambda: "got hup" in up.documented("alloc", "logs", name)["text"], "the signal")
    assert up.documented("alloc", "restart", "--task", "server", name)["tasks"] == ["server"]

    def after() -> dict[str, Any]:
        return up.documented("alloc", "status", name)["tasks"]["server"]

    up.until(lambda: after()["pid"] not in (0, before["pid"]), "another process")
    assert not after()["failed"]
    code, answer = up.run("alloc", "signal", "-s", "SIGNONE", name)
    assert code == 1 and answer["error"]["code"] == "invalid"
    code, answer = up.run("alloc", "restart", "--task", "other", name)
    assert code == 1 and answer["error"]["code"] == "not_found"


def test_alloc_stop_has_it_replaced(up: Up, tmp_path: Path) -> None:
    """An event: the allocation ends, another one of its name comes."""
    name = start(up, tmp_path, "moved")
    first = allocs(up, "moved")[0]["id"]
    answer = up.documented("alloc", "stop", name)
    assert answer["changed"] and answer["allocation"] == first

    def heirs() -> list[str]:
        running = [one for one in allocs(up, "moved") if one["client_status"] == "running"]
        return [one["previous"] for one in running if one["desired_status"] == "run"]

    up.until(lambda: heirs() == [first], "its successor")
    assert not up.documented("alloc", "stop", first)["changed"]
    code, answer = up.run("alloc", "stop", "ffffffffffff")
    assert code == 1 and answer["error"]["code"] == "not_found"


def test_a_drained_node_is_emptied(up: Up, tmp_path: Path) -> None:
    """At the deadline what ran there runs elsewhere, and the drain is over; the node comes back when asked to."""
    start(up, tmp_path, "flock", count=4)
    start(up, tmp_path, "always", count=1, kind="system")
    answer = up.documented("node", "drain", "--enable", "--deadline", "1s", "node-1")
    assert answer["draining"] and answer["deadline_ns"] > 0

    def on_first() -> list[str]:
        return [
            one["job_id"]
            for job in ("flock", "always")
            for one in allocs(up, job)
            if one["node"] == "node-1" and one["client_status"] in ("running", "pending")
        ]

    def first() -> tuple[bool, str]:
        nodes = up.documented("node", "status")["nodes"]
        (one,) = (one for one in nodes if one["id"] == "node-1")
        return one["draining"], one["eligibility"]

    up.until(lambda: on_first() == [], "an empty node")
    up.until(lambda: states(up, "flock").count("running") == 4, "four elsewhere")
    up.until(lambda: first() == (False, "ineligible"), "the end of the drain")
    ended = up.documented("node", "drain", "--monitor", "node-1")
    assert (ended["done"], ended["deadline_reached"], ended["remaining"]) == (True, True, 0)
    up.documented("node", "drain", "--disable", "node-1")
    up.until(lambda: on_first() == ["always"], "what runs everywhere is back")
    start(up, tmp_path, "once", count=1, kind="sysbatch")
    code, out, _ = said(up, "node", "drain", "--enable", "--no-deadline", "node-1")
    assert code == 0 and b"runs until it ends" in out
    assert first() == (True, "ineligible")
    code, refused = up.run("node", "eligibility", "--enable", "node-1")
    assert code == 1 and refused["error"]["code"] == "conflict"
    up.documented("node", "drain", "--disable", "node-1")
    up.documented("job", "stop", "always")
    up.documented("job", "stop", "flock")
    up.documented("job", "stop", "once")


def test_meta_is_seen_by_constraints_and_tasks(up: Up, tmp_path: Path) -> None:
    """A job that waits for a rack runs once an operator says where it is; its task sees the word."""
    path = tmp_path / "racked.nomad.hcl"
    text = JOB % ("racked", "service", 1, "echo on ${meta.rack}; exec sleep 10000")
    rule = 'constraint {\n    attribute = "${meta.rack}"\n    value = "r7"\n  }\n  group "g" {'
    path.write_text(text.replace('group "g" {', rule, 1))
    assert up.run("job", "run", str(path))[0] == 2
    assert states(up, "racked") == []
    answer = up.documented("node", "meta", "set", "node-2", "rack=r7", "tier=gold")
    assert answer["meta"] == {"rack": "r7", "tier": "gold"} and answer["changed"]
    up.until(lambda: states(up, "racked") == ["running"], "the job runs")
    assert allocs(up, "racked")[0]["node"] == "node-2"
    up.until(lambda: up.documented("alloc", "logs", "racked.g[0]")["text"] == "on r7\n", "its word")
    up.documented("node", "meta", "unset", "node-2", "tier")
    assert up.documented("node", "meta", "list", "node-2")["operator_meta"] == {"rack": "r7"}
