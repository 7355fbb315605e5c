"""The file of a job beside its submission: what is kept of it, and that nothing is decided by it."""

from typing import Any

import msgspec
import orjson
import pytest

from schemas.jobs import RegisterJob
from schemas.rollouts import RegisterJobs
from schemas.submissions import JobSource
from shared.errors import CommandInvalid
from shared.jobspec.files.load import load_file
from shared.jobspec.source import pack_source, unpack_source, without_source
from shared.jobspec.strict_json import RAW_BYTES_MAX, TEXT_BYTES_MAX
from shared.jobspec.submission import SubmissionCache, read_submission, to_command

HCL = (
    'variable "n" { default = 1 }\njob "a" {\n  # é "quoted"\n  group "g" {\n    count = var.n\n'
    '    task "t" { driver = "any" }\n  }\n}\n'
)
GIVEN = {
    "Source": HCL,
    "Format": "hcl2",
    "VariableFlags": {"n": "2\n"},
    "Variables": 'x = "\\u00e9"\n',
}
SOURCE = JobSource(source=HCL, variable_flags={"n": "2\n"}, variables='x = "\\u00e9"\n')


def body(submission: Any = None, **more: Any) -> bytes:
    """A small job, and what is beside it."""
    group = {"Name": "g", "Tasks": [{"Name": "t", "Driver": "any"}]}
    beside = {"SubmissionID": "s", **more} | (
        {} if submission is None else {"Submission": submission}
    )
    return orjson.dumps({"Job": {"ID": "a", "Name": "a", "TaskGroups": [group]}, **beside})


def command(given: bytes, memo: SubmissionCache | None = None) -> RegisterJob:
    """What a body becomes."""
    found = to_command(read_submission(given, "submit", memo=memo), "s")
    assert isinstance(found, RegisterJob)
    return found


def test_the_file_is_kept_as_it_was_written() -> None:
    """Text, format, flags and variables come back as they were sent; null counts as absent."""
    assert unpack_source(command(body(GIVEN)).source) == SOURCE
    sparse = {"Source": "{}", "Format": "json", "VariableFlags": None, "Variables": None}
    assert unpack_source(command(body(sparse)).source) == JobSource(source="{}", format="json")


def test_nothing_else_of_a_submission_differs_by_its_file() -> None:
    """With and without the file: one digest, one text, one command but for the source, which is left out when empty."""
    plain, with_file = command(body()), command(body(GIVEN))
    assert plain.source == b"" and with_file.source
    assert msgspec.structs.replace(with_file, source=b"") == plain
    assert b"source" not in msgspec.json.encode(plain)
    assert command(body({"Source": ""})) == plain


def test_what_is_remembered_of_a_body_has_its_file() -> None:
    """A job under another name has the file that was sent with it, from the memo too."""
    memo = SubmissionCache()
    for text in ("one", "two", "one"):
        for name in ("b", "c"):
            given = body({"Source": text}).replace(b'"a"', b'"%b"' % name.encode())
            assert unpack_source(command(given, memo).source) == JobSource(source=text)
    assert len(memo) == 2


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("text", "Submission"),
        ([], "Submission"),
        ({}, "Submission"),
        ({"Source": 1}, "Submission.Source"),
        ({"Source": "x", "VariableFlags": {"a": 1}}, "Submission.VariableFlags[...]"),
        ({"Source": "x", "Formt": "hcl2"}, "Submission.Formt"),
        ({"Source": "a\0b"}, "Submission.Source"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(given: Any, path: str) -> None:
    """Wrong types, unknown keys and NUL are faults at a path."""
    with pytest.raises(CommandInvalid) as caught:
        read_submission(body(given), "submit")
    assert caught.value.path == path


def test_an_unknown_key_may_be_accepted() -> None:
    """With accept_unknown a key beside the file's has no effect."""
    assert command(body({"Source": "x", "More": 1}, accept_unknown=True)).source


def test_a_file_does_not_count_as_its_job() -> None:
    """A request may be longer than a job by its file, up to the bound of every request."""
    text = "#" * (TEXT_BYTES_MAX + 1)
    found = unpack_source(command(body({"Source": text})).source)
    assert found is not None and found.source == text
    with pytest.raises(CommandInvalid) as caught:
        read_submission(body(Meta=text), "submit")
    assert caught.value.code == "too_large"
    with pytest.raises(CommandInvalid) as caught:
        read_submission(body({"Source": "#" * RAW_BYTES_MAX}), "submit")
    assert caught.value.code == "too_large"


def test_a_command_without_its_file_warns() -> None:
    """A job keeps its warnings and gains one; a command without a file is itself, so are the jobs of a rollout."""
    plain, with_file = command(body()), command(body(GIVEN))
    assert without_source(plain) is plain
    left = without_source(with_file)
    assert isinstance(left, RegisterJob) and left.source == b""
    (warning,) = left.warnings
    assert warning.startswith(f"job source too large: {len(with_file.source)} bytes")
    both = RegisterJobs(submission_id="s", digest="d", rollout="r", jobs=(plain, with_file))
    assert without_source(both) == msgspec.structs.replace(both, jobs=(plain, left))


@pytest.mark.parametrize("packed", [b"", b"x", b"\x78\x9c", pack_source(SOURCE)[:-20]])
def test_what_is_no_packed_file_is_none(packed: bytes) -> None:
    """Bytes that hold no file are none, never an error."""
    assert unpack_source(packed) is None


def test_a_job_file_is_its_own_source() -> None:
    """Each format is named; variables are those given, and those of the environment that the file declares."""
    found = load_file(
        HCL.encode(),
        "a.hcl",
        variables={"n": "3"},
        var_files=[("one.vars", b"n = 4\n")],
        env={"NOMAD_VAR_n": "5", "NOMAD_VAR_secret": "6", "HOME": "/root"},
    )
    assert found.source == JobSource(source=HCL, variable_flags={"n": "3"}, variables="n = 4\n")
    found = load_file(HCL.encode(), env={"NOMAD_VAR_n": "5", "NOMAD_VAR_secret": "6"})
    assert found.source == JobSource(source=HCL, variable_flags={"n": "5"})
    for name, text in (("n.vars", b"n = 4\n"), ("n.json", b'{"n": 4}')):
        found = load_file(HCL.encode(), env={"NOMAD_VAR_n": "5"}, var_files=[(name, text)])
        assert found.source == JobSource(source=HCL, variables=text.decode())
    json_text, yaml_text = (
        body(),
        b"job:\n  a:\n    group:\n      g:\n        task:\n          t:\n            driver: d\n",
    )
    for text, name in ((json_text, "json"), (yaml_text, "yaml")):
        found = load_file(text, f"a.{name}")
        assert found.source == JobSource(source=text.decode(), format=name), found.errors
    assert load_file(b'job "a" {').source is None
