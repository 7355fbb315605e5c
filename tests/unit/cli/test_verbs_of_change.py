"""Drains, deployments and versions on the command line: bad flags end with 1 and one line, before a bus is asked."""

import pytest

from services.cli.main import main

DRAIN = ("node", "drain")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*DRAIN, "n1"), "either --enable or --disable is required"),
        ((*DRAIN, "--enable", "--disable", "n1"), "either --enable or --disable is required"),
        ((*DRAIN, "--enable", "--force", "--no-deadline", "n1"), "exclude each other"),
        ((*DRAIN, "--enable", "--force", "--deadline", "5s", "n1"), "exclude each other"),
        ((*DRAIN, "--enable", "--no-deadline", "--deadline", "5s", "n1"), "exclude each other"),
        ((*DRAIN, "--disable", "--force", "n1"), "--force requires --enable"),
        ((*DRAIN, "--disable", "--deadline", "5s", "n1"), "--deadline requires --enable"),
        ((*DRAIN, "--monitor", "-m", "why", "n1"), "-m requires --enable"),
        ((*DRAIN, "--disable", "--monitor", "n1"), "--disable and --monitor exclude each other"),
        ((*DRAIN, "--disable", "--ignore-system", "n1"), "--ignore-system requires --enable"),
        ((*DRAIN, "--enable", "--keep-ineligible", "n1"), "--keep-ineligible requires --disable"),
        ((*DRAIN, "--enable"), "either ID or --self is required"),
        ((*DRAIN, "--enable", "--self", "n1"), "either ID or --self is required"),
        ((*DRAIN, "--enable", "--deadline", "soon", "n1"), "is not a duration like 90m"),
        ((*DRAIN, "--enable", "--deadline", "0s", "n1"), "--deadline must be positive"),
        ((*DRAIN, "--enable", "--deadline=-5m", "n1"), "--deadline must be positive"),
        (("deployment", "set-health", "d1"), "--healthy or --unhealthy is required"),
        (("job", "dispatch", "--meta", "lot", "report"), "is not KEY=VALUE"),
        (("job", "dispatch", "--payload", "/nowhere/at/all", "report"), "No such file"),
    ],
)
def test_flags_that_make_no_sense(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1, nothing on stdout, and one line that names the flag."""
    assert main(list(words)) == 1
    out, err = capsys.readouterr()
    assert not out and says in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("deployment", "promote"),
        ("deployment", "pause"),
        ("deployment", "resume"),
        ("deployment", "fail"),
        ("job", "revert", "web"),
        ("job", "scale", "web"),
        ("job", "scale", "web", "many"),
        ("job", "tag", "apply", "web"),
        ("job", "start"),
        ("job", "dispatch"),
        ("job", "periodic", "force"),
    ],
)
def test_what_is_required(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """An argument that is missing, or no number, is a usage error and not a traceback."""
    try:
        code = main(list(words))
    except SystemExit as end:
        code = int(end.code or 0)
    assert code in {1, 2}
    err = capsys.readouterr().err
    assert "Traceback" not in err and err.strip()
