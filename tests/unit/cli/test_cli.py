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
from collections.abc import Callable
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from schemas import envelope
from schemas.host_volumes import VolumeSpec
from services.cli.command_spec import AT_OPTION, CommandSpec, Needs
from services.cli.command_table import COMMANDS, GROUPS
from services.cli.help import build_parser, command_overview
from services.cli.job import files
from services.cli.local import demo
from services.cli.local.cluster import LocalCluster, LocalClusterSettings
from services.cli.local.processes import SupervisedProcess
from services.cli.log import replay, tail, verify
from services.cli.main import main
from services.cli.runtime import log_position
from services.cli.runtime.output import CommandOutput, TableColumn
from shared.bus.connection.public_client import Client
from shared.bus.jetstream import streams
from shared.bus.server.nats_server import free_port
from shared.core.runtime.messages import Record
from shared.display import event_text
from shared.errors import BusUnavailable, ConfigInvalid
from tests.docs import cli_page
from tests.unit.view.view_story import Story

ROOT = Path(__file__).resolve().parents[3]


def ids(command: CommandSpec) -> str:
    return " ".join(command.words)


# ---- the surface ----


def test_docs_describe_every_command() -> None:
    """docs/cli.md has a chapter for every command, as the table of commands says."""
    page = cli_page.PAGE.read_text(encoding="utf-8")
    assert cli_page.render(page) == page, "python -m tests.docs.cli_page writes it"
    assert all(cli_page.heading(command) in page for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=ids)
def test_results_are_structs_with_documented_keys(command: CommandSpec) -> None:
    """Every case of a command's --json names a Struct.

    Those that print none: `run`, `top`, which is drawn, and `var lock`, whose output is that of another program.
    """
    none = {("run",), ("top",), ("var", "lock")}
    assert bool(command.results) == (command.words not in none)
    for case in command.results:
        assert command.keys(case), case


@pytest.mark.parametrize("command", COMMANDS, ids=ids)
def test_the_past_is_read_from_the_log(command: CommandSpec) -> None:
    """--at needs the log, so that --from-file is there too."""
    assert AT_OPTION not in command.args or command.needs is Needs.LOG


def parameters(handler: Callable[..., int]) -> set[str]:
    """Names of the parameters; those of `**options: Unpack[TypedDict]` in place of `options`."""
    found: set[str] = set()
    hints = get_type_hints(handler)
    for name, one in inspect.signature(handler).parameters.items():
        is_rest = one.kind is inspect.Parameter.VAR_KEYWORD
        found |= set(get_type_hints(get_args(hints[name])[0])) if is_rest else {name}
    return found


@pytest.mark.parametrize("command", COMMANDS, ids=ids)
def test_handlers_take_what_is_parsed(command: CommandSpec) -> None:
    """Each command's function takes exactly the arguments that its parser yields."""
    handler = command.load_handler()
    wanted = parameters(handler) - {"out"}
    # What all of a run heeds (`--at`) does not reach the command.
    names = {arg.name for arg in command.args}
    assert wanted == (names if AT_OPTION.name in wanted else names - {AT_OPTION.name})
    assert build_parser(command).format_help()


@pytest.mark.parametrize("command", COMMANDS, ids=ids)
def test_help_teaches_by_examples(command: CommandSpec) -> None:
    """Every command's help shows at least one example, and each of them is one that it takes."""
    assert command.examples
    text = build_parser(command).format_help()
    for example in command.examples:
        assert f"  caravan {example}" in text
        words = shlex.split(re.split(r" [|<>] ", example)[0])
        assert tuple(words[: len(command.words)]) == command.words
        build_parser(command).parse_args(words[len(command.words) :])


def test_the_overview_lists_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """`caravan` alone lists every command; a group alone lists its own."""
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(f"  {ids(command)} " in text for command in COMMANDS)
    for group in GROUPS:
        assert main([group]) == 0
        words = set(re.findall(r"^  (\w+)", command_overview(group), re.MULTILINE))
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
     ["sim", "check", "--mutant", "x"], ["bench", "p0"], ["up", "--appliers", "0"],
     ["up", "--one-process", "--schedulers", "2"]],
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


# ---- what people see ----


def test_a_dumb_terminal_gets_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colours are for terminals that have them: neither TERM=dumb nor NO_COLOR gets an escape."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    seen = []
    for term in ("xterm", "dumb", ""):
        monkeypatch.setenv("TERM", term)
        seen.append(CommandOutput().has_colour)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert [*seen, CommandOutput().has_colour] == [True, False, False, False]


def test_narrow_tables_wrap_and_keep_every_column(capsys: pytest.CaptureFixture[str]) -> None:
    """The widest cells wrap; an empty column keeps its heading; a table that still does not fit is printed by field."""
    columns = [
        TableColumn("ID"),
        TableColumn("SIZE", right=True),
        TableColumn("REASON"),
        TableColumn("EMPTY"),
    ]
    rows = [("0123456789", "12 B", "no room on any node", "")]
    out = CommandOutput()
    out._columns = 37
    out.table(columns, rows)
    assert capsys.readouterr().out.splitlines() == [
        "ID          SIZE  REASON        EMPTY",
        "0123456789  12 B  no room on",
        "                  any node",
    ]
    out._columns = 20
    out.table(columns, rows)
    assert capsys.readouterr().out.splitlines() == [
        "ID      0123456789",
        "SIZE    12 B",
        "REASON  no room on",
        "        any node",
    ]


@pytest.mark.parametrize(
    "cell", ["", "a b", "word", "a-very-long-word-that-cannot-be-broken-at-a-space"]
)
@pytest.mark.parametrize("width", [20, 33, 47, 80])
def test_no_line_of_a_table_is_too_wide(
    cell: str, width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the cells hold."""
    out = CommandOutput()
    out._columns = width
    out.table("|".join(f"C{n}" for n in range(5)), [(cell, "x", cell * 2, "yy", cell)] * 2)
    assert all(len(line) <= width for line in capsys.readouterr().out.splitlines())


def test_nothing_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters in other people's texts are shown as question marks."""
    CommandOutput().table("A", [("x\x1b[2Jy\x07",)])
    assert "x?[2Jy?" in capsys.readouterr().out


def test_no_events_are_hidden() -> None:
    """Every record has at least one line: events of every kind, leases, and what is foreign."""
    story = Story()
    story.node("n1")
    story.job("j")
    story.plan("j", (0,))
    lines = [line for record in story.records for line in event_text.describe_record(record)]
    assert [line.type for line in lines] == [
        *("lease", "cluster.created", "node.registered", "job.registered"),
        *("evaluations.created", "plan.committed"),
    ]
    assert lines[-1].text == "j: web 1 on 1 node; by w"
    assert event_text.describe_record(Record(9, "log.1.tx", b"\xff\x00"))[0].type == "foreign"
    for kind in envelope.AnyEvent.__args__:
        fields = {f.name: _example(f) for f in msgspec.structs.fields(kind) if f.required}
        assert isinstance(event_text.describe_event(msgspec.convert(fields, kind)), str)


def _example(field: msgspec.structs.FieldInfo) -> object:
    """A value that fits a required field of an event."""
    origin = {
        "origin": {"worker": "w", "number": 1, "snapshot_seq": 1},
        "spec": {"node_id": "n"},
        "pool": {"name": "gpu"},
        "meta": {"rack": "r7"},
    }
    if isinstance(field.type, type) and issubclass(field.type, VolumeSpec):
        return {"id": "v", "name": "data", "plugin": "mkdir", "capabilities": []}
    if field.name in origin:
        return origin[field.name]
    for kind, value in ((str, "x"), (int, 1), (bool, True), (bytes, b"x")):
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
    assert files.example_path(name) == ROOT / "examples" / name
    assert main(["job", "validate", str(files.example_path(name)), "--json"]) == 0
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
    return next(command.keys() for command in COMMANDS if command.words == words)


# ---- proving a log ----


class FakeClient:
    """A log in memory, and a view that knows how long it should be."""

    def __init__(self, records: list[Record], seen: int) -> None:
        self.records = records
        self.seen = seen

    async def request_bytes(self, subject: str, body: bytes, timeout_s: float = 0) -> bytes:
        return msgspec.json.encode({"seq": self.seen})

    async def log_state(self, out: CommandOutput) -> tuple[streams.StreamState, str]:
        return streams.StreamState(messages=self.seen, first_seq=1, last_seq=self.seen), ""

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
    tables = story.view.replica.state.hashes()
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
    for module in (verify, replay, tail):
        monkeypatch.setattr(module, "with_bus", lambda work: asyncio.run(work(client)))
    monkeypatch.setattr(verify, "_stream_state", client.log_state, raising=False)
    monkeypatch.setattr(log_position, "snapshot_before", nothing_restored)
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


def test_a_comparison_names_the_moments_that_were_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A foreign record, as a checkpoint, changes no state: it is the moment nevertheless."""
    records = small_log()
    last = len(records) + 1
    foreign = Record(last, "log.1.tx", b"PubAck")
    words = ("replay", "--diff", "4", str(last))
    code, found = run_on(monkeypatch, capsys, [*records, foreign], *words)
    assert (code, found["from_seq"], found["to_seq"]) == (0, 4, last)


# ---- processes and directories ----


def test_a_dead_child_comes_back_later_and_later(tmp_path: Path) -> None:
    """What dies is started again after 0.1 s, then 0.2 s and so on up to 5 s."""
    child = SupervisedProcess(
        name="c", role="c", command=("/bin/false",), env={}, log_path=tmp_path / "c.log"
    )
    delays = []
    now_s = 0.0
    child.start()
    for _ in range(8):
        assert child.wait_or_kill(5) == 0
        now_s = child._started_s
        text = child.look(now_s)
        assert text.startswith("ended with exit code 1")
        delays.append(round(child._due_s - now_s, 3))
        assert child.look(child._due_s - 0.01) == ""
        assert child.look(child._due_s).startswith("restarted") or child.restarts
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    child.wait_or_kill(5)


def test_a_data_directory_has_one_up(tmp_path: Path) -> None:
    """A directory that is in use, of a newer release, or something else altogether, is refused in one line."""
    first = LocalCluster(LocalClusterSettings(data_dir=tmp_path / "a"), print)
    first.data_dir.mkdir()
    first._take_lock()
    for name, content, text in (
        ("a", None, f"in use by another `caravan up`, pid {os.getpid()}"),
        ("b", b'{"format":99,"cluster_id":"x","core":"9.0"}', "use the newer one"),
        ("e", b'{"format":1,"cluster_id":"x","core":"0.100.0"}', "was written by core 0.100.0"),
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
            LocalCluster(LocalClusterSettings(data_dir=folder), print).start()
    first.stop()


@pytest.mark.parametrize(
    ("uid", "words", "offered"),
    [(0, [], False), (0, ["--raw-exec"], True), (1000, [], True), (1000, ["--no-raw-exec"], False)],
)
def test_root_offers_raw_exec_when_asked_only(
    uid: int,
    words: list[str],
    offered: bool,  # noqa: FBT001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tasks of the driver run as the user of `up`: as root that is asked for; others may leave it out."""
    seen: list[LocalClusterSettings] = []

    def stop(settings: LocalClusterSettings, _report: object) -> None:
        seen.append(settings)
        raise BusUnavailable("far enough")

    monkeypatch.setattr("services.cli.local.up.LocalCluster", stop)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        assert main(["up", "--data-dir", str(tmp_path), *words]) == 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert [one.raw_exec for one in seen] == [offered]
