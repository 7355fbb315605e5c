"""Short forms that users of Nomad type."""

import pytest

from services.cli.command_table import COMMANDS
from services.cli.completion import candidates
from services.cli.local.run_role import AGENT
from services.cli.main import main
from services.cli.short_forms import SHORT_FORMS, expand
from shared.bus.server.accounts import ROLES


def test_each_short_form_stands_for_a_command_and_hides_none() -> None:
    """Its words begin a command; itself it is the first word of none."""
    for name, words in SHORT_FORMS.items():
        assert any(one.words[: len(words)] == words for one in COMMANDS), name
        assert all(one.words[0] != name for one in COMMANDS), name


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("plan web.hcl", "job plan web.hcl"),
        ("logs -f web", "job logs -f web"),
        ("exec 5f2c -- ls", "alloc exec 5f2c -- ls"),
        ("fs ls 5f2c", "alloc fs ls 5f2c"),
        ("run web.nomad.hcl", "job run web.nomad.hcl"),
        ("run ./web", "job run ./web"),
        ("run -", "job run -"),
        ("run -detach web.nomad.hcl", "job run -detach web.nomad.hcl"),
        ("run --var a=b web.hcl", "job run --var a=b web.hcl"),
        ("run --help", "run --help"),
        ("run", "run"),
        ("job plan x", "job plan x"),
        ("", ""),
    ],
)
def test_words_are_put_in_place(typed: str, wanted: str) -> None:
    """Only the first word is looked at; `run` is a job's where a file or an option stands behind it."""
    assert expand(typed.split()) == wanted.split()


def test_a_role_is_never_taken_for_a_file() -> None:
    """All roles, alone and together."""
    for words in (*ROLES, AGENT, ",".join(ROLES)):
        assert expand(["run", words]) == ["run", words]


def test_help_and_hints_know_the_short_forms(capsys: pytest.CaptureFixture[str]) -> None:
    """The overview lists them; a typing error is led to them; help is that of the command."""
    assert main(["--help"]) == 0
    assert "logs (job logs)" in " ".join(capsys.readouterr().out.split())
    assert main(["lgos"]) == 1
    assert "did you mean 'logs'?" in capsys.readouterr().err
    assert main(["plan", "--help"]) == 0
    assert "caravan job plan" in capsys.readouterr().out


def test_a_short_form_is_completed_as_its_command() -> None:
    """Options are those of the command."""
    assert "--tail" in dict(candidates(["logs", "--"]))
    assert "--check-index" in dict(candidates(["run", "web.hcl", "--check"]))
    assert "scheduler" in dict(candidates(["run", "sch"]))
