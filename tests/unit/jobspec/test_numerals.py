"""Numbers of files and arguments: what Python's readers take and other tools do not is refused with its place."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.cli.job.files import read_job_file
from services.cli.main import main
from shared.cron.spec import CronInvalid, parse_cron
from shared.durations import InvalidDuration, parse_duration
from shared.jobspec.drivers.docker import read_docker
from shared.jobspec.files.load import LoadedJobFile, load_file
from shared.jobspec.hcl.errors import HclError
from shared.jobspec.hcl.values import as_number
from shared.numerals import is_digits, parse_decimal, parse_whole

#: Texts that Python's int or float reads.
STRANGE = ("1_000", "٣٠", "१", " 7", "7 ", "²", "1_0.5", "nan", "inf", "Infinity", "0x10")
JOB = """
job "j" {
  type = "batch"
  group "g" {
    count = %s
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/echo"
        args    = %s
      }
    }
  }
}
"""


@pytest.mark.parametrize("text", STRANGE)
def test_no_reader_takes_what_is_no_number(text: str) -> None:
    """Underscores, spaces, digits of other scripts, infinities: none of the readers takes them."""
    assert not is_digits(text)
    for read in (parse_whole, parse_decimal):
        with pytest.raises(ValueError, match="is not a"):
            read(text)
    with pytest.raises(HclError, match="must be a number"):
        as_number(text)
    with pytest.raises(InvalidDuration):
        parse_duration(f"1h{text}s")
    with pytest.raises(CronInvalid):
        parse_cron(f"{text.replace(' ', '_')} * * * *")


@pytest.mark.parametrize("text", ["1_000", "٣٠", "²"])
def test_no_field_of_a_job_file_takes_it(text: str) -> None:
    """The field is named, with its line; so is an option of a driver."""
    for value in (f'"{text}"', f'parseint("{text}", 10)'):
        loaded = load_file((JOB % (value, "[]")).encode(), "j.hcl")
        assert loaded.errors and loaded.errors[0].line == 5, value
    told = read_docker({"image": "i", "pids_limit": text})[1]
    assert [one.path for one in told] == ["pids_limit"]
    assert read_docker({"image": "i", "ulimit": {"nofile": text}})[1]


@pytest.mark.parametrize(
    "words",
    [
        ("log", "tail", "-n", "{}"),
        ("sql", "SELECT 1", "--limit", "{}"),
        ("job", "scale", "j", "{}"),
        ("log", "drop", "{}", "/nowhere"),
    ],
)
@pytest.mark.parametrize("text", ["1_0", "٣", "²"])
def test_no_argument_takes_it(
    words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An argument that is a number is refused as wrong usage."""
    assert main([*(word.format(text) for word in words), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "usage"


@pytest.mark.parametrize(
    ("text", "value"), [("30", 30), ("-3", -3), ("+3", 3), ("0.5", 0.5), ("1e3", 1000), (".5", 0.5)]
)
def test_numbers_are_read(text: str, value: float) -> None:
    """What people write as a number is one."""
    assert as_number(text) == parse_decimal(text) == value


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.5, "0.5"), (1.0, "1"), (1e-7, "0.0000001"), (1e21, "1000000000000000000000"), (3, "3")],
)
def test_a_number_in_a_list_of_texts_is_a_text(value: float, shown: str) -> None:
    """`args = ["--ratio", 0.5]` is what Nomad makes of it, in each format; so are labels and the like."""
    assert read_docker({"image": "i", "args": ["--ratio", value]})[0].args == ("--ratio", shown)
    assert read_docker({"image": "i", "labels": {"x": value}})[0].labels == {"x": shown}
    as_json: dict[str, Any] = {
        "Name": "t",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/echo", "args": [value]},
    }
    whole = {"Job": {"ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [as_json]}]}}
    assert not load_file(json.dumps(whole).encode(), "j.json").errors
    assert not load_file((JOB % (1, f'["--ratio", {value:f}]')).encode(), "j.hcl").errors


@pytest.mark.parametrize("name", ["v.json", "v.vars"])
def test_variables_come_from_a_file_of_json(tmp_path: Path, name: str) -> None:
    """An object is read as JSON, whatever its file is called; each fault names its line in that file."""
    job, values = tmp_path / "j.hcl", tmp_path / name
    declared = 'variable "n" { type = number }\nvariable "args" { type = list(string) }\n'
    job.write_text(declared + JOB % ("var.n", "var.args"))

    def loaded() -> LoadedJobFile:
        return read_job_file(str(job), var=[], var_file=[str(values)])

    values.write_text(json.dumps({"n": 3, "args": ["a", 0.5, "x y"]}))
    found = loaded()
    assert not found.errors
    assert json.loads(found.body)["Job"]["TaskGroups"][0]["Count"] == 3
    for text, line, told in (
        ('{"n": 3,\n"args": [],\n"nope": 1}', 3, "'nope' is not declared"),
        ('{\n"n": "x", "args": []}', 2, "must be a number"),
        ('{"n": 3, "args": "a"}', 1, "must be a list"),
        ('{"n": 3,\n"args": [}', 2, "malformed JSON"),
        ('{"n": 3, "n": 4, "args": []}', 0, "duplicate key 'n'"),
        ('{"n": 3, "args": [], "x": NaN}', 1, "malformed JSON"),
    ):
        values.write_text(text)
        fault = loaded().errors[0]
        assert told in fault.message, text
        assert (fault.file, fault.line) == (str(values), line), text


def test_a_variables_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    """The fault is in that file, on its line, not in the job file."""
    job, values = tmp_path / "j.hcl", tmp_path / "v.hcl"
    job.write_text(JOB % (1, "[]"))
    values.write_bytes(b'a = 1\nb = "\xff"\n')
    (fault,) = read_job_file(str(job), var=[], var_file=[str(values)]).errors
    assert (fault.file, fault.line) == (str(values), 2)
