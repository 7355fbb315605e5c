"""Template blocks: every rule has an error with its path, and faults of a template itself are found at submission."""

from typing import Any

import pytest

from shared.gotemplate.functions import catalog
from shared.gotemplate.template import FAULTS_MAX, parse_template
from shared.jobspec.checks.error_list import ERRORS_MAX
from shared.jobspec.checks.job import job_errors
from shared.jobspec.checks.templates import CHECKED_CHARS_MAX
from shared.jobspec.nomad.job import JobSpec, TaskGroup, TaskSpec
from shared.jobspec.nomad.tasks import ChangeScript, TemplateBlock, TemplateWait

PLAIN: dict[str, Any] = {"data": "x", "destination": "local/x"}
SECOND = 1_000_000_000


def errors(*blocks: dict[str, Any]) -> dict[str, str]:
    """What is wrong with the templates of a job, by path below its task."""
    templates = tuple(TemplateBlock(**one) for one in blocks)
    task = TaskSpec(name="t", driver="raw_exec", templates=templates)
    job = JobSpec(id="j", name="j", groups=(TaskGroup(name="g", tasks=(task,)),))
    top = "Job.TaskGroups[0].Tasks[0]."
    found = {one.path.removeprefix(top): one.message for one in job_errors(job)}
    return {path: text for path, text in found.items() if path.startswith("Templates")}


@pytest.mark.parametrize(
    "block",
    [
        PLAIN,
        {"source": "local/x.tpl", "destination": "${NOMAD_SECRETS_DIR}/x"},
        {**PLAIN, "destination": "../alloc/x", "perms": "0600", "uid": 100, "gid": -1},
        {**PLAIN, "change_mode": "signal", "change_signal": "SIGHUP", "splay_ns": 0},
        {**PLAIN, "change_mode": "script", "change_script": ChangeScript(command="/bin/true")},
        {**PLAIN, "env": True, "once": True, "wait": TemplateWait(min_ns=1, max_ns=2)},
        {**PLAIN, "data": '{{ key "a" }}{{ with secret "b" }}{{ .Data.c }}{{ end }}'},
        {**PLAIN, "destination": "${NOMAD_ALLOC_DIR}/x"},
        {**PLAIN, "destination": "/etc/x"},
        {**PLAIN, "destination": "${meta.place}/x"},
        {**PLAIN, "data": "[[ env `A` ]] {{ x", "left_delimiter": "[[", "right_delimiter": "]]"},
    ],
)
def test_what_nomad_takes_is_no_error(block: dict[str, Any]) -> None:
    """All change modes, places within the allocation and other delimiters are taken."""
    assert errors(block) == {}


@pytest.mark.parametrize(
    ("more", "path", "part"),
    [
        ({"data": ""}, "", "needs data or a source"),
        ({"source": "local/a"}, ".SourcePath", "data is set, too"),
        ({"data": "", "source": "../../other/secrets/a"}, ".SourcePath", "must not leave"),
        ({"destination": ""}, ".DestPath", "must be set"),
        ({"destination": "../../x"}, ".DestPath", "must not leave"),
        ({"destination": "local/../../../x"}, ".DestPath", "must not leave"),
        ({"destination": "../other/local/x"}, ".DestPath", "must not leave"),
        ({"destination": "${NOMAD_SECRETS_DIR}/../../x"}, ".DestPath", "must not leave"),
        ({"data": "", "source": "../other/secrets/x"}, ".SourcePath", "must not leave"),
        ({"destination": "local/a\0b"}, ".DestPath", "must not leave"),
        ({"change_mode": "reload"}, ".ChangeMode", "must be one of noop, restart"),
        ({"change_mode": "signal"}, ".ChangeSignal", "must be set"),
        (
            {"change_mode": "signal", "change_signal": "SIGHUP", "env": True},
            ".ChangeMode",
            "with env",
        ),
        ({"change_mode": "script"}, ".ChangeScript.Command", "must be set"),
        ({"splay_ns": -1}, ".Splay", "must be 0"),
        ({"perms": "9"}, ".Perms", "must be octal"),
        ({"perms": "17777"}, ".Perms", "up to 7777"),
        ({"uid": 2**31}, ".Uid", "must be at most"),
        (
            {"wait": TemplateWait(min_ns=2 * SECOND, max_ns=SECOND)},
            ".Wait.Min",
            "must not exceed max",
        ),
        ({"data": "a\n{{ if }}"}, ".EmbeddedTmpl", "line 2 of the template: missing value for if"),
        ({"data": "{{ toUper `a` }}"}, ".EmbeddedTmpl", "did you mean toUpper?"),
    ],
)
def test_what_cannot_be_has_an_error(more: dict[str, Any], path: str, part: str) -> None:
    """Each rule names the field and what is wrong."""
    found = errors({**PLAIN, **more})
    assert list(found) == ["Templates[0]" + path] and part in found["Templates[0]" + path], found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ nomadVar `nomad/jobs/j/g/t` }}{{ nomadVarExists `nomad/jobs` }}", ""),
        ("{{ nomadVarList }}{{ nomadVarList `` }}{{ nomadVarListSafe `nomad/jobs/j/` }}", ""),
        ("{{ $p := `nomad/jobs/other` }}{{ nomadVar $p }}{{ `app` | nomadVar }}", ""),
        ("\n{{ nomadVar `app` }}", "line 2 of the template: this task may not read variable app: "),
        ("{{ with nomadVar `nomad/jobs/j/` }}{{ end }}", "variable nomad/jobs/j/: it may read "),
        (
            "{{ if false }}{{ (nomadVar `nomad/jobs/j/g/u`).x }}{{ end }}",
            "variable nomad/jobs/j/g/u",
        ),
        ("{{ nomadVarExists `nomad/jobs/k` }}", "variable nomad/jobs/k: it may read nomad/jobs, "),
        ("{{ nomadVarList `nomad/jobs/k` }}", "may not list variables below nomad/jobs/k: "),
        ("{{ nomadVarListSafe `x` }}", "below x: it may read nomad/jobs, nomad/jobs/j, "),
    ],
)
def test_a_path_that_the_task_cannot_read_is_a_fault(text: str, said: str) -> None:
    """Where it stands as a text: a task reads its four paths (S54). What is made while it is rendered is found then."""
    found = errors({**PLAIN, "data": text})
    assert (list(found) == ["Templates[0].EmbeddedTmpl"]) is bool(said), found
    assert said in "".join(found.values())


def test_two_templates_have_two_destinations() -> None:
    """A destination is taken once in a task, however it is written."""
    other = {"data": "y", "destination": "./local//x"}
    assert "same destination" in errors(PLAIN, other)["Templates[1].DestPath"]
    other = {**other, "destination": "${NOMAD_TASK_DIR}/x"}
    assert "same destination" in errors(PLAIN, other)["Templates[1].DestPath"]
    assert errors(PLAIN, {**other, "destination": "local/y"}) == {}


def test_the_number_of_templates_and_their_size_are_bounded() -> None:
    """A hundred templates are allowed; the syntax of very large ones is checked on the node alone."""
    many = [{**PLAIN, "destination": f"local/{at}"} for at in range(101)]
    assert "at most 100" in errors(*many)["Templates"]
    large = {"data": "x" * CHECKED_CHARS_MAX, "destination": "local/l"}
    assert errors(large, {"data": "{{", "destination": "local/m"}) == {}
    assert list(errors({"data": "{{", "destination": "local/m"}, large)) == [
        "Templates[0].EmbeddedTmpl"
    ]


def test_names_are_suggested_for_reported_faults_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest name of an unknown function is looked for as often as it is reported, not as often as it is used."""
    asked: list[str] = []

    def nearest(name: str) -> str:
        asked.append(name)
        return ""

    monkeypatch.setattr(catalog, "_nearest", nearest)
    data = "".join(f"{{{{ toUper{number} }}}}" for number in range(5 * FAULTS_MAX))
    assert len(parse_template(data).faults) == len(asked) == FAULTS_MAX
    asked.clear()
    errors(*({"data": data, "destination": f"local/{number}"} for number in range(20)))
    assert len(asked) == ERRORS_MAX
