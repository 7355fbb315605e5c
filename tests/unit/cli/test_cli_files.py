"""Job files, contexts and completion of the command line: what needs no bus."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from services.cli import completion
from services.cli.command_spec import CommandSpec
from services.cli.command_table import COMMANDS
from services.cli.help import build_parser
from services.cli.job import files
from services.cli.main import main
from services.cli.runtime import contexts, local_clusters
from shared.bus.server.nats_server import free_port

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Contexts of this test alone, and no bus named from outside."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("CARAVAN_NATS_URL", raising=False)
    return tmp_path / "caravan"


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return json.loads(capsys.readouterr().out)


# ---- job files ----


def test_init_writes_a_job_that_is_valid_and_never_overwrites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example is valid without a warning; a second init leaves the file as it is."""
    path = tmp_path / "a.nomad.hcl"
    assert main(["job", "init", str(path)]) == 0
    capsys.readouterr()
    assert main(["job", "validate", str(path), "--json"]) == 0
    assert told(capsys) == {"ok": True, "job": "example", "warnings": [], "errors": []}
    path.write_text("mine")
    assert main(["job", "init", str(path), "--json"]) == 1
    assert told(capsys)["error"]["code"] == "conflict"
    assert path.read_text() == "mine"


HCL = """
variable "count" { type = number }
variable "text" { default = "a" }
job "j" {
  group "g" {
    count = var.count
    task "t" {
      driver = "raw_exec"
      config { command = var.text }
      env { FILE = file("%s") }
    }
  }
}
"""


def body(path: Path, **given: list[str]) -> dict[str, object]:
    loaded = files.read_job_file(
        str(path), var=given.get("var", []), var_file=given.get("files", [])
    )
    assert not loaded.errors, loaded.errors
    return json.loads(loaded.body)["Job"]


def test_a_job_file_may_draw_and_each_reading_draws_anew(tmp_path: Path) -> None:
    """`uuidv4()` is refused where nothing may be drawn; the command line may: two in a file differ, and each time."""
    path = tmp_path / "j.hcl"
    path.write_text((HCL % "j.hcl").replace('file("j.hcl")', "uuidv4()\n OTHER = uuidv4()"))
    drawn: set[str] = set()
    for _ in range(2):
        drawn |= set(body(path, var=["count=1"])["TaskGroups"][0]["Tasks"][0]["Env"].values())
    assert len({UUID(one) for one in drawn if UUID(one).version == 4}) == 4


def test_variables_come_from_options_files_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--var wins over --var-file, which wins over NOMAD_VAR_*; a value may hold an equals sign."""
    path = tmp_path / "j.hcl"
    (tmp_path / "note.txt").write_text("noted")
    path.write_text(HCL % "note.txt")
    values = tmp_path / "v.hcl"
    values.write_text('count = 3\ntext = "file"\n')
    monkeypatch.setenv("NOMAD_VAR_count", "9")
    assert body(path)["TaskGroups"][0]["Count"] == 9
    found = body(path, files=[str(values)], var=["text=a=b"])["TaskGroups"][0]
    assert (found["Count"], found["Tasks"][0]["Config"]["command"]) == (3, "a=b")
    assert found["Tasks"][0]["Env"]["FILE"] == "noted"


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "link"])
def test_a_job_file_reads_nothing_outside_its_folder(tmp_path: Path, name: str) -> None:
    """`file()` finds what lies beside the job file or below, whatever path or link is tried."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    path = folder / "j.hcl"
    path.write_text(HCL % name)
    loaded = files.read_job_file(str(path), var=["count=1"], var_file=[])
    assert "outside" in loaded.errors[0].message
    assert loaded.errors[0].line == 10


def test_wrong_variables_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A --var without a value is wrong usage; one that the file does not know is a fault of the file's."""
    path = tmp_path / "j.hcl"
    path.write_text('job "j" { group "g" { task "t" { driver = "raw_exec" } } }')
    assert main(["job", "validate", "--var", "x", str(path), "--json"]) == 1
    assert told(capsys)["error"]["code"] == "usage"
    assert main(["job", "validate", "--var", "x=1", str(path), "--json"]) == 1
    assert "x" in told(capsys)["errors"][0]["message"]


def test_one_dash_does_for_long_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nomad's `-var x=1` and `-json` mean the same as with two dashes."""
    path = tmp_path / "j.hcl"
    (tmp_path / "n").write_text("n")
    path.write_text(HCL % "n")
    assert main(["job", "validate", "-var", "count=1", "-json", str(path)]) == 0
    assert told(capsys)["ok"] is True


def test_plan_has_its_own_exit_code_for_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """As Nomad's: 255, so that a script can tell an error from changes."""
    assert main(["job", "plan", "/nowhere.hcl"]) == 255
    assert main(["job", "plan"]) == 255
    assert len(capsys.readouterr().err.splitlines()) == 2


# ---- contexts ----


def test_a_context_names_a_bus(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first context is used, `use` changes that, `rm` forgets; --context does it for one command."""
    first, second = (f"nats://127.0.0.1:{free_port()}" for _ in range(2))
    assert main(["context", "add", "one", first]) == 0
    assert main(["context", "add", "two", second, "--user", "u"]) == 0
    capsys.readouterr()
    assert main(["context", "list", "--json"]) == 0
    listed = told(capsys)
    assert (listed["current"], [one["name"] for one in listed["contexts"]]) == (
        "one",
        ["one", "two"],
    )
    for words, url in ((["job", "status"], first), (["job", "status", "--context", "two"], second)):
        assert main(words) == 1
        assert url in capsys.readouterr().err
    assert main(["context", "use", "two"]) == 0
    assert main(["context", "rm", "two"]) == 0
    assert not (config / "context").exists()
    capsys.readouterr()


def test_the_environment_wins_over_the_context_in_use(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CARAVAN_NATS_URL is nearer than a file; --context is nearer still."""
    here, there = (f"nats://127.0.0.1:{free_port()}" for _ in range(2))
    assert main(["context", "add", "there", there]) == 0
    monkeypatch.setenv("CARAVAN_NATS_URL", here)
    capsys.readouterr()
    assert main(["job", "status"]) == 1
    assert here in capsys.readouterr().err
    assert main(["job", "status", "--context=there"]) == 1
    assert there in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["context", "use", "none"], ["context", "rm", "../x"], ["job", "status", "--context", "none"],
     ["context", "add", "a/b", "nats://x"], ["context", "add", "a", "http://x"], ["context", "add", "a", "x"],
     ["context", "add", "a", "nats://u:secret@x"]],
)  # fmt: skip
def test_a_wrong_context_is_one_line(
    config: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What is no context, no name or no bus is refused in one line, without a password."""
    assert main(words) == 1
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "secret" not in err
    assert not (config / "contexts").exists()


def test_a_damaged_context_names_its_file(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is no TOML, or lacks its bus, is named."""
    (config / "contexts").mkdir(parents=True)
    for text in ("url =", "user = 'x'"):
        (config / "contexts" / "bad.toml").write_text(text)
        assert main(["job", "status", "--context", "bad"]) == 1
        assert "bad.toml" in capsys.readouterr().err


@pytest.fixture
def two_ups(config: Path) -> Iterator[list[str]]:
    """Two running clusters of this user, as records name them; their URLs, the newest last."""
    processes = [subprocess.Popen(["/bin/sleep", "3600"]) for _ in range(2)]
    urls = [f"nats://127.0.0.1:{free_port()}" for _ in processes]
    for number, (process, url) in enumerate(zip(processes, urls, strict=True)):
        data = config.parent / f"data-{number}"
        (data / "credentials").mkdir(parents=True)
        (data / "credentials" / "public").write_text(f"secret-{number}\n")
        record = local_clusters.LocalClusterRecord(
            pid=process.pid, url=url, data_dir=str(data), cluster_id=f"c{number}", started_ns=number
        )
        local_clusters.write_record(record)
    yield urls
    for process in processes:
        process.kill()
        process.wait()


def test_a_change_wants_one_of_several_clusters_chosen(
    two_ups: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is changed on a guess: the clusters are listed. A choice is named with its cluster."""
    names = [f"up-{url.rpartition(':')[2]}" for url in two_ups]
    # Without --json: its output is that of its command.
    assert main(["var", "lock", "1", "--", "true"]) == 1
    said = capsys.readouterr().err
    assert all(f"{name} ({url})" in said for name, url in zip(names, two_ups, strict=True))
    for command in [one for one in COMMANDS if one.changes and one.words != ("var", "lock")]:
        words = [
            *command.words,
            *("1" for arg in command.args if not arg.flags and arg.default != ""),
        ]
        monkeypatch.setattr(CommandSpec, "load_handler", lambda _: lambda *_a, **_k: 0)
        code = main([*words, "--json"])
        error = told(capsys)["error"]
        assert (code, error["code"]) == (1, "ambiguous"), words
        assert all(
            f"{name} ({url})" in error["message"] for name, url in zip(names, two_ups, strict=True)
        )
        if "--context" in {flag for arg in command.arguments for flag in arg.flags}:
            assert main([*words, "--json", "--context", names[0]]) == 0
            assert capsys.readouterr().err == f"cluster c0 ({two_ups[0]}, context {names[0]})\n"
        monkeypatch.setenv("CARAVAN_NATS_URL", two_ups[1].replace("127.0.0.1", "localhost"))
        assert main([*words, "--json"]) == 0
        assert f"cluster c1 ({two_ups[1]}, context {names[1]})" in capsys.readouterr().err
        monkeypatch.delenv("CARAVAN_NATS_URL")
    monkeypatch.undo()


def test_what_is_in_force_is_shown_with_its_reason(
    config: Path,
    two_ups: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Running clusters stand in the list; the bus in force is marked, and why: option, variable, context or guess."""

    def listed(*words: str) -> tuple[object, object, object]:
        capsys.readouterr()
        assert main(["context", "list", "--json"]) == 0
        found = told(capsys)
        return found["selected"], found["url"], found["reason"]

    newest = f"up-{two_ups[1].rpartition(':')[2]}"
    assert listed() == (newest, two_ups[1], "newest `caravan up`")
    assert main(["context", "list"]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"^\*  {newest} .*caravan up$", text, re.MULTILINE)
    assert (
        f"in force: context {newest}, {two_ups[1]} (the newest `caravan up` of this user)" in text
    )
    assert main(["context", "add", "far", "nats://far:4222"]) == 0
    assert listed() == ("far", "nats://far:4222", "current context")
    monkeypatch.setenv("CARAVAN_NATS_URL", "nats://other:pass@far:4222")
    assert listed() == ("", "nats://far:4222", "CARAVAN_NATS_URL")
    for verb in ("use", "rm"):
        assert main(["context", verb, newest, "--json"]) == 1
        assert "running `caravan up`" in told(capsys)["error"]["message"]


def test_the_login_is_that_of_the_context_with_the_address(
    config: Path,
    two_ups: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """CARAVAN_NATS_URL brings its login, or gets that of the context at its address; another address has none."""
    secret = config.parent / "password"
    secret.write_text("p@ss/word\n")
    words = ["context", "add", "far", "nats://a:4222,nats://b:4222", "--user", "ci"]
    assert main([*words, "--password-file", str(secret)]) == 0
    given = {
        two_ups[0]: ("public", "secret-0"),
        "nats://b,nats://a:4222": ("ci", "p@ss/word"),
        "nats://x:y%40@a:4222": ("x", "y@"),
        "nats://elsewhere:4222": ("", ""),
    }
    for url, login in given.items():
        monkeypatch.setenv("CARAVAN_NATS_URL", url)
        assert contexts.select().context.login() == login, url
    monkeypatch.delenv("CARAVAN_NATS_URL")
    capsys.readouterr()
    assert main(["context", "env", "far"]) == 0
    line = capsys.readouterr().out.strip()
    url = "nats://ci:p%40ss%2Fword@a:4222,nats://ci:p%40ss%2Fword@b:4222"
    assert line == f"export CARAVAN_NATS_URL={url}"
    monkeypatch.setenv("CARAVAN_NATS_URL", url)
    assert contexts.select().context.login() == ("ci", "p@ss/word")


def test_a_password_stays_in_its_file(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A context names the file; an unreadable one is an error before any request."""
    words = [
        "context",
        "add",
        "a",
        "nats://127.0.0.1:1",
        "--user",
        "u",
        "--password-file",
        "/none/x",
    ]
    assert main(words) == 0
    capsys.readouterr()
    assert main(["job", "status"]) == 1
    assert "/none/x" in capsys.readouterr().err


# ---- completion ----


@pytest.mark.parametrize(("shell", "check"), [("bash", ["bash", "-n"]), ("zsh", ["bash", "-n"])])
def test_completion_is_a_script(
    shell: str, check: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The script is one that a shell can read, and asks the command line."""
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    done = subprocess.run(check, input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "caravan __complete -- " in text


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.words))
def test_completion_offers_what_help_lists(command: CommandSpec) -> None:
    """The options of a command are the same in completion and help."""
    text = build_parser(command).format_help()
    listed = set(re.findall(r"(?:^  |, )(-[-a-zA-Z]+)", text, re.MULTILINE)) - {"-h"}
    offered = {value for value, _ in completion.candidates([*command.words, "-"])}
    # `run FILE` is the short form of `job run`, whose options are offered, too.
    assert offered == listed or (command.words == ("run",) and offered > listed)
    assert not any(
        value == "--json" for value, _ in completion.candidates([*command.words, "--", "-"])
    )


LINES = [
    (["jo"], {"job"}),
    (["job", "in"], {"inspect", "init"}),
    (["job", "run", "--d"], {"--detach"}),
    (["job", "status", "--co"], {"--context"}),
    (["job", "status", "--fr"], {"--from-file"}),
    (["operator", "scheduler", ""], {"get", "set", "--help"}),
    (["eval", "list", "--status", "bl"], {"blocked"}),
    (["completion", ""], {"bash", "zsh", "fish"}),
]


@pytest.mark.parametrize(("line", "offered"), LINES)
def test_words_options_and_fixed_values_are_offered(line: list[str], offered: set[str]) -> None:
    """They come from the table of commands."""
    assert {value for value, _ in completion.candidates(line)} == offered


def test_without_a_bus_no_ids_are_offered(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids come from the bus, contexts and files from this machine; nothing fails."""
    assert main(["context", "add", "here", "nats://127.0.0.1:1"]) == 0
    monkeypatch.setenv("CARAVAN_NATS_URL", f"nats://127.0.0.1:{free_port()}")
    for line in (["job", "stop", ""], ["why-not", "a", ""], ["alloc", "logs", ""]):
        assert list(completion.candidates(line)) == []
    assert list(completion.candidates(["job", "status", "--context", "h"])) == [
        ("here", "nats://127.0.0.1:1")
    ]
    assert list(completion.candidates(["job", "run", ""])) == [(completion.FILES, "")]


def test_bash_offers_what_the_command_line_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script asks `caravan __complete` with the words up to the cursor."""
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    (tmp_path / "caravan").write_text(f'#!/bin/sh\nexec {sys.executable} -m services.cli "$@"\n')
    (tmp_path / "caravan").chmod(0o755)
    (tmp_path / "a b.hcl").touch()
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    for line, offered in (("job run --de", "--detach"), ("job run a", "a b.hcl")):
        words = " ".join(f"'{word}'" for word in ("caravan", *line.split()))
        at = len(line.split())
        ask = f'COMP_WORDS=({words}); COMP_CWORD={at}; _caravan; printf "%s\\n" "${{COMPREPLY[@]}}"'
        done = subprocess.run(
            ["bash", "-c", f"{script}\n{ask}"],
            capture_output=True,
            text=True,
            check=True,
            env=env,
            cwd=tmp_path,
        )
        assert done.stdout.splitlines() == [offered]
