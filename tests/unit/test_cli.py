"""The command line: what it accepts, what it prints, how it fails, and what it does without a bus."""

import asyncio
import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from schemas import envelope
from services.cli import demo, events, job_files, logs, moments, replays, running_ups, tails
from services.cli.children import Child, processes_of
from services.cli.cluster import Cluster, ClusterSettings
from services.cli.commands import COMMANDS, GROUPS
from services.cli.main import main, overview, parser_of
from services.cli.output import Column, Output
from services.cli.words import AT, Command
from shared.bus import streams
from shared.bus.client import Client
from shared.bus.server import free_port
from shared.core.role import Record
from shared.errors import BusUnavailable, ConfigInvalid
from tests.unit.view_story import Story

ROOT = Path(__file__).resolve().parents[2]
DOCS = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def ids(command: Command) -> str:
    return " ".join(command.words)


def chapter(command: Command) -> str:
    """The part of docs/cli.md about one command."""
    parts = re.split(r"^## ", DOCS, flags=re.MULTILINE)
    found = [part for part in parts if re.match(rf"`caravan {ids(command)}(`| [\[A-Z])", part)]
    assert len(found) == 1, ids(command)
    return found[0]


# ---- the surface ----


@pytest.mark.parametrize("command", COMMANDS, ids=ids)
def test_docs_describe_every_command(command: Command) -> None:
    """docs/cli.md has every command with all its options, arguments and JSON keys."""
    text = chapter(command)
    for arg in command.args:
        for flag in arg.flags:
            assert f"`{flag}" in text or f", {flag}" in text, flag
        if not arg.flags:
            assert (arg.metavar or arg.name.upper()) in text.splitlines()[0]
    told = re.search(r"^Keys: (.*)\.$", text, re.MULTILINE)
    keys = re.findall(r"`(\w+)`", told.group(1)) if told else []
    assert tuple(keys) == command.keys


@pytest.mark.parametrize("command", COMMANDS, ids=ids)
def test_handlers_take_what_is_parsed(command: Command) -> None:
    """Each command's function takes exactly the arguments that its parser yields."""
    handler = getattr(import_module(command.module), command.handler)
    wanted = set(inspect.signature(handler).parameters) - {"out"}
    # What all of a run heeds (`--at`) does not reach the command.
    assert wanted == {arg.name for arg in command.args if arg is not AT}
    assert parser_of(command).format_help()


@pytest.mark.parametrize("command", COMMANDS, ids=ids)
def test_help_teaches_by_examples(command: Command) -> None:
    """Every command's help shows at least one example, and each of them is one that it takes."""
    assert command.examples
    text = parser_of(command).format_help()
    for example in command.examples:
        assert f"  caravan {example}" in text
        words = shlex.split(re.split(r" [|<>] ", example)[0])
        assert tuple(words[: len(command.words)]) == command.words
        parser_of(command).parse_args(words[len(command.words) :])


def test_the_overview_lists_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """`caravan` alone lists every command; a group alone lists its own."""
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(f"  {ids(command)} " in text for command in COMMANDS)
    for group in GROUPS:
        assert main([group]) == 0
        words = set(re.findall(r"^  (\w+)", overview(group), re.MULTILINE))
        assert words == {group}


def test_help_imports_nothing_slow() -> None:
    """Help is printed without a bus client, arrays, an event loop or a renderer."""
    code = "import sys; from services.cli.main import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"nats", "numpy", "asyncio", "rich", "structlog", "pydantic"} & set(
        done.stdout.split()
    )


@pytest.mark.parametrize(
    "words",
    [["jbo"], ["job", "rnu"], ["job", "run"], ["job", "run", "x", "--wat"], ["log", "tail", "-n", "x"],
     ["run", "king"], ["replay", "--to", "yesterday"], ["sim", "check", "--seeds", "0"],
     ["sim", "check", "--mutant", "x"], ["bench", "p0"], ["up", "--appliers", "0"]],
)  # fmt: skip
def test_wrong_usage_is_one_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong words are refused with exit 1: one line for people, one object under --json."""
    assert main(words) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert main([*words, "--json"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["error"]["code"] == "usage"
    assert told.err == ""


def test_no_bus_is_one_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a bus every asking command ends with exit 1 and a line that says what to do."""
    monkeypatch.setenv("CARAVAN_NATS_URL", f"nats://127.0.0.1:{free_port()}")
    assert main(["job", "status"]) == 1
    told = capsys.readouterr()
    assert (told.out, len(told.err.splitlines())) == ("", 1)
    assert "caravan up" in told.err
    assert main(["log", "verify", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "unavailable"


def test_a_wrong_login_is_told_from_an_absent_bus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who comes with a wrong password is not asked whether the bus is running; the password is not shown."""

    async def refuse(_self: Client) -> Client:
        raise BusUnavailable("no bus at nats://h:1: nats: 'Authorization Violation'")

    monkeypatch.setattr(Client, "__aenter__", refuse)
    monkeypatch.setenv("CARAVAN_NATS_URL", "nats://a:guessed@h:1")
    assert main(["job", "status"]) == 1
    told = capsys.readouterr().err
    assert "the bus at nats://h:1 refuses this login" in told
    assert "guessed" not in told
    assert "caravan up" not in told


def test_a_closed_pipe_is_no_traceback() -> None:
    """When the reader leaves, nothing is printed about it."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "services.cli", "--help"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False, cwd=ROOT)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_while_loading_is_no_traceback() -> None:
    """Until all is loaded Ctrl-C ends the process in silence; afterwards it is Python's again, or still ignored."""
    press = "import services.cli.abrupt, os, signal; os.kill(os.getpid(), signal.SIGINT)"
    done = subprocess.run([sys.executable, "-c", press], capture_output=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")
    ask = "import signal, services.cli.main; print(repr(signal.getsignal(signal.SIGINT)))"
    for begin, handler in (("", "default_int_handler"), ("trap '' INT; ", "SIG_IGN")):
        line = f'{begin}exec "{sys.executable}" -c "{ask}"'
        told = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=True, cwd=ROOT)
        assert handler in told.stdout.decode()


@pytest.mark.parametrize("redirect", ["exec >&-", "exec >&- 2>&-"])
def test_closed_streams_are_no_traceback(redirect: str) -> None:
    """Who closes stdout gets silence: no fault of ours, and nothing in place of what was closed."""
    line = f'{redirect}; exec "{sys.executable}" -m services.cli dead list --json'
    env = {**os.environ, "CARAVAN_NATS_URL": f"nats://127.0.0.1:{free_port()}"}
    done = subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, check=False, cwd=ROOT, env=env
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_a_poor_encoding_is_no_traceback(tmp_path: Path) -> None:
    """What a terminal's encoding lacks is shown as a question mark."""
    path = tmp_path / "ring.hcl"
    path.write_text('locals {\n a = local.b\n b = local.a\n}\njob "j" {}\n')
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "job", "validate", str(path)],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"local.a ? local.b" in done.stdout


# ---- what people see ----


def test_a_dumb_terminal_gets_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colours are for terminals that have them: neither TERM=dumb nor NO_COLOR gets an escape."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    seen = []
    for term in ("xterm", "dumb", ""):
        monkeypatch.setenv("TERM", term)
        seen.append(Output().has_colour)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert [*seen, Output().has_colour] == [True, False, False, False]


def test_narrow_tables_leave_out_what_matters_least(capsys: pytest.CaptureFixture[str]) -> None:
    """A table is never wider than the terminal while columns can be spared; rank 0 always stays."""
    out = Output()
    out._columns = 20
    columns = [Column("ID"), Column("NODE", 2), Column("STATUS", 1), Column("EMPTY", 1)]
    out.table(columns, [("0123456789", "node-1", "running", "")])
    assert capsys.readouterr().out.splitlines() == ["ID          STATUS", "0123456789  running"]


def test_nothing_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters in other people's texts are shown as question marks."""
    Output().table([Column("A")], [("x\x1b[2Jy\x07",)])
    assert "x?[2Jy?" in capsys.readouterr().out


def test_no_events_are_hidden() -> None:
    """Every record has at least one line: events of every kind, leases, and what is foreign."""
    story = Story()
    story.node("n1")
    story.job("j")
    story.plan("j", (0,))
    lines = [line for record in story.records for line in events.of_record(record)]
    assert [line.type for line in lines] == [
        *("lease", "cluster.created", "node.registered", "job.registered"),
        *("evaluations.created", "plan.committed"),
    ]
    assert lines[-1].text == "j: web 1 on 1 node; by w"
    assert events.of_record(Record(9, "log.1.tx", b"\xff\x00"))[0].type == "foreign"
    for kind in envelope.AnyEvent.__args__:
        fields = {f.name: _example(f) for f in msgspec.structs.fields(kind) if f.required}
        assert isinstance(events.describe(msgspec.convert(fields, kind)), str)


def _example(field: msgspec.structs.FieldInfo) -> object:
    """A value that fits a required field of an event."""
    origin = {
        "origin": {"worker": "w", "number": 1, "snapshot_seq": 1},
        "spec": {"node_id": "n"},
        "pool": {"name": "gpu"},
        "meta": {"rack": "r7"},
    }
    if field.name in origin:
        return origin[field.name]
    for kind, value in ((str, "x"), (int, 1), (bool, True)):
        if field.type is kind or getattr(field.type, "__supertype__", None) is kind:
            return value
    return {} if field.name == "policy" else ()


# ---- without a bus ----


def test_validate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job file is checked offline; every fault has its path, broken JSON its line."""
    assert (
        main(["job", "validate", str(ROOT / "examples" / "two-groups.nomad.json"), "--json"]) == 0
    )
    good = json.loads(capsys.readouterr().out)
    assert (good["ok"], good["job"], good["errors"]) == (True, "two-groups", [])
    bad = tmp_path / "bad.json"
    bad.write_text('{"ID": "a",\n "TaskGroups": [{"Name": "x", "Count": -1}]}')
    assert main(["job", "validate", str(bad), "--json"]) == 1
    paths = [one["path"] for one in json.loads(capsys.readouterr().out)["errors"]]
    assert "Job.TaskGroups[0].Count" in paths
    bad.write_text("{\n\n!")
    assert main(["job", "validate", str(bad), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["errors"][0]["line"] == 3
    assert main(["job", "validate", str(tmp_path / "none"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["file"].endswith("none")


@pytest.mark.parametrize("name", [demo.SERVICE, demo.BATCH])
def test_the_demo_runs_the_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What the demo submits are the valid job files that people find under examples/, without a warning."""
    assert job_files.example(name) == ROOT / "examples" / name
    assert main(["job", "validate", str(job_files.example(name)), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["warnings"]) == (True, [])


def test_sim_check(capsys: pytest.CaptureFixture[str]) -> None:
    """`sim check --json` prints one object with the documented keys, and nothing else."""
    main(["sim", "check", "--seeds", "1", "--seed", "3", "--json"])
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert set(found) == set(_keys("sim", "check"))
    assert (found["seeds"], found["first_seed"]) == (1, 3)


def test_bench(capsys: pytest.CaptureFixture[str]) -> None:
    """A benchmark's object says what was measured and on what, under the documented keys."""
    code = main(["bench", "p10", "--size", "0.01", "--runs", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert set(found) == set(_keys("bench"))
    assert code == (0 if all(found["checks"].values()) else 1)
    assert (found["name"], found["runs"]) == ("p10", 1)


def _keys(*words: str) -> tuple[str, ...]:
    return next(command.keys for command in COMMANDS if command.words == words)


# ---- proving a log ----


class FakeClient:
    """A log in memory, and a view that knows how long it should be."""

    def __init__(self, records: list[Record], seen: int) -> None:
        self.records = records
        self.seen = seen

    async def request_bytes(self, subject: str, body: bytes, timeout_s: float = 0) -> bytes:
        return msgspec.json.encode({"seq": self.seen})

    async def log_state(self, out: Output) -> streams.StreamState:
        return streams.StreamState(messages=self.seen, first_seq=1, last_seq=self.seen)

    async def read_log(self, first: int = 1, last: int = 0):  # noqa: ANN201
        for record in self.records:
            if record.seq >= first and (not last or record.seq <= last):
                yield record


async def nothing_restored(*_: object) -> None:
    """No view has written any snapshot."""


def small_log(*, checkpoint: dict[str, str] | None = None) -> list[Record]:
    story = Story()
    story.node("n1")
    story.job("j")
    story.plan("j", (0,))
    story.start()
    tables = story.view._replica.state.hashes()
    story.checkpoint({**tables, **(checkpoint or {})})
    return story.records


def run_on(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    records: list[Record],
    *words: str,
) -> tuple[int, dict[str, object]]:
    """Run a command on a log in memory; return exit code and object."""
    client = FakeClient(records, len(small_log()))
    for module in (logs, replays, tails):
        monkeypatch.setattr(module, "with_bus", lambda work: asyncio.run(work(client)))
    monkeypatch.setattr(logs, "_log_state", client.log_state, raising=False)
    monkeypatch.setattr(moments, "restored_before", nothing_restored)
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_verify_proves(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A sound log is proven against its checkpoints; foreign records are counted, not believed."""
    records = small_log()
    foreign = Record(len(records) + 1, "log.1.tx", b"PubAck")
    code, proof = run_on(monkeypatch, capsys, [*records, foreign], "log", "verify")
    assert (code, proof["ok"], proof["problem"]) == (0, True, "")
    assert (proof["placements"], proof["foreign"], proof["last_seq"]) == (1, 1, len(records) + 1)
    assert set(_keys("log", "verify")) <= set(proof)


@pytest.mark.parametrize("damage", ["bit", "gap", "head", "tail"])
def test_verify_names_damage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    """A flipped bit, a missing record, a missing beginning and a missing end are damage: exit 2, with the seq."""
    records = small_log()
    if damage == "bit":
        data = bytearray(records[2].data)
        data[60] ^= 1
        records[2] = msgspec.structs.replace(records[2], data=bytes(data))
    else:
        cut = {"gap": slice(2, 3), "head": slice(0, 1), "tail": slice(5, None)}[damage]
        del records[cut]
    code, proof = run_on(monkeypatch, capsys, records, "log", "verify")
    assert (code, proof["ok"]) == (2, False)
    assert re.search(
        {"bit": "3", "gap": "4", "head": "begins at 2", "tail": r"\b5\b"}[damage],
        proof["problem"],
    )


def test_verify_tells_divergence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint with another hash than a replay's is a divergence: exit 1, with the table."""
    records = small_log(checkpoint={"jobs": "0" * 16})
    code, proof = run_on(monkeypatch, capsys, records, "log", "verify")
    assert (code, "jobs" in str(proof["problem"])) == (1, True)


def test_replay_stops_where_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replay shows the state at a seq or at a moment, and refuses a seq that is not there."""
    records = small_log()
    code, state = run_on(monkeypatch, capsys, records, "replay", "--to", "4")
    assert (code, state["seq"], state["counts"]["jobs"]) == (0, 4, 1)
    assert state["counts"]["allocations"]["pending"] == 0
    code, state = run_on(
        monkeypatch, capsys, records, "replay", "--to", "2000-01-01T00:00:00+00:00"
    )
    assert state["seq"] == len(records)
    code, state = run_on(monkeypatch, capsys, records, "replay", "--to", "99")
    assert (code, state["error"]["code"]) == (1, "not_found")


# ---- processes and directories ----


def test_a_dead_child_comes_back_later_and_later(tmp_path: Path) -> None:
    """What dies is started again after 0.1 s, then 0.2 s and so on up to 5 s."""
    child = Child(name="c", role="c", command=("/bin/false",), env={}, log_path=tmp_path / "c.log")
    delays = []
    now_s = 0.0
    child.start()
    for _ in range(8):
        assert child.wait_or_kill(5) == 0
        now_s = child._started_s
        said = child.look(now_s)
        assert said.startswith("ended with exit code 1")
        delays.append(round(child._due_s - now_s, 3))
        assert child.look(child._due_s - 0.01) == ""
        assert child.look(child._due_s).startswith("restarted") or child.restarts
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    child.wait_or_kill(5)


def test_a_data_directory_has_one_up(tmp_path: Path) -> None:
    """A directory that is in use, of a newer release, or something else altogether, is refused in one line."""
    first = Cluster(ClusterSettings(data_dir=tmp_path / "a"), print)
    first.data_dir.mkdir()
    first._take_lock()
    for name, content, text in (
        ("a", None, f"in use by another `caravan up`, pid {os.getpid()}"),
        ("b", b'{"format":99,"cluster_id":"x","core":"9.0"}', "use the newer one"),
        ("c", b"{", "cannot be read"),
        ("d", None, "not a data directory"),
    ):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        if content is not None:
            (folder / "cluster.json").write_bytes(content)
        elif name == "d":
            (folder / "thesis.txt").touch()
        with pytest.raises(ConfigInvalid, match=re.escape(text)):
            Cluster(ClusterSettings(data_dir=folder), print).start()
    first.stop()


def test_only_living_ups_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands find the newest cluster whose process lives, and the directories of its agents."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert running_ups.newest_url() == ""
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    agents = {"n1": str(tmp_path / "n1")}
    for pid, url, started_ns in ((os.getpid(), "nats://a", 1), (gone.pid, "nats://b", 2)):
        up = running_ups.RunningUp(
            pid=pid, url=url, data_dir=str(tmp_path), started_ns=started_ns, agents=agents
        )
        running_ups.write(up)
    assert running_ups.newest_url() == "nats://a"
    assert running_ups.agent_dir("n1", "nats://a") == tmp_path / "n1"
    assert running_ups.agent_dir("n2", "nats://a") is None
    running_ups.remove(os.getpid(), tmp_path)
    assert running_ups.newest_url() == ""


def test_leftovers_are_seen(tmp_path: Path) -> None:
    """A process whose environment names the directory is found until it ends."""
    child = subprocess.Popen(["/bin/sleep", "60"], env={"X": str(tmp_path)})
    try:
        assert processes_of(tmp_path) == [child.pid]
    finally:
        child.kill()
        child.wait()
    assert processes_of(tmp_path) == []
