"""Job files, contexts and completion of the command line: what needs no bus."""

import json
import subprocess
from pathlib import Path
from uuid import UUID

import pytest

from services.cli import job_files
from services.cli.commands import COMMANDS
from services.cli.main import main
from shared.bus.server import free_port


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
    loaded = job_files.read(str(path), var=given.get("var", []), var_file=given.get("files", []))
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
    loaded = job_files.read(str(path), var=["count=1"], var_file=[])
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
    """What is no context, no name or no bus is refused in one line, and no password is told."""
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


def test_a_password_stays_in_its_file(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A context names the file; one that cannot be read is told before anything is asked."""
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
    """The script is one that a shell can read, and it knows every command."""
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    done = subprocess.run(check, input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f'"{" ".join(c.words)}"*)' in text for c in COMMANDS)


@pytest.mark.parametrize(
    ("line", "offered"),
    [(["jo"], {"job"}), (["job", "in"], {"inspect", "init"}), (["job", "run", "--d"], {"--detach"}),
     (["operator", "scheduler", ""], {"get", "set"}), (["completion", ""], {"bash", "zsh", "fish"})],
)  # fmt: skip
def test_bash_offers_what_may_follow(
    line: list[str], offered: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Words, options and fixed values come from the table of commands."""
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    words = " ".join(f"'{word}'" for word in ("caravan", *line))
    asked = f'COMP_WORDS=({words}); COMP_CWORD={len(line)}; _caravan; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{asked}"], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == offered


def test_fish_knows_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Every word of every command is offered where it belongs."""
    assert main(["completion", "fish"]) == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        begin = " ".join(("__caravan_at", *command.words[:-1]))
        assert f"-n '{begin}' -a {command.words[-1]} " in text
