"""What other handlers are given has the values of secrets; what they say of it has the references again."""

import asyncio
from typing import Any

import msgspec
import pytest

from services.agent.drivers.launch_values import (
    fill_options,
    fill_secrets,
    launch_environment,
    with_values,
)
from services.agent.inputs.input_handler import InputContext, InputFailed
from services.agent.inputs.secrets.filled_inputs import HIDDEN, FilledInputs, masked, missing_key
from shared.core.runtime.agent_messages import (
    PrepareTask,
    StartTask,
    TaskGone,
    TaskInput,
    TaskLaunch,
    WatchInputs,
)
from shared.core.runtime.agent_messages import prepared_inputs as answer
from shared.core.runtime.input_specs import ArtifactInput, SecretInput, TemplateInput
from shared.jobspec.secret_references import SecretReference, fill_references, find_references
from tests.unit.agent.agent_story import Story, alloc, job_json, task_json

PASSWORD = SecretReference("db", "password")
VALUES = {PASSWORD: "p&ss ${secret.db.user}", SecretReference("db", "user"): "root"}
REFERENCE = "${secret.db.password}"


class Source:
    """A ReferenceHandler that has the values once it was asked to prepare them."""

    kind = "secret"
    event_kind = begin_kind = ""
    stage = -1
    timeout_s: float | None = None

    def __init__(self, *, has: bool = True) -> None:
        self.has = has
        self.asked: list[str] = []

    async def prepare(self, _about: InputContext, wanted: TaskInput) -> bytes:
        self.asked.append(wanted.name)
        self.has = True
        return b""

    def references(self, _alloc_id: str, _task: str) -> dict[SecretReference, str]:
        return VALUES if self.has else {}

    def holds(self, _alloc_id: str, _task: str, _wanted: TaskInput) -> bool:
        return self.has

    def forget(self, _alloc_id: str) -> None:
        """Keep it."""


def an_input(kind: str, spec: Any) -> TaskInput:
    return TaskInput(name=kind, kind=kind, spec=msgspec.Raw(msgspec.json.encode(spec)))


SECRET = an_input("secret", SecretInput(secret="db", provider="nomad", path="x"))


def context(**more: Any) -> InputContext:
    fields = {"launch": TaskLaunch(env={"P": REFERENCE}), "inputs": (SECRET,), **more}
    return InputContext(key=1, alloc_id="a", task="t", run=1, places=None, **fields)  # type: ignore[arg-type]


def test_a_value_is_filled_in_once_and_read_for_no_reference() -> None:
    """Whatever is in it stays as it is; so does a reference without a value, or of another kind."""
    text = "a ${secret.db.password} ${ secret.db.user } ${secret.x.y} ${secret.db.no} ${NOMAD_X}"
    assert fill_references({"k": [text]}, VALUES) == {
        "k": ["a p&ss ${secret.db.user} root ${secret.x.y} ${secret.db.no} ${NOMAD_X}"]
    }
    assert [one.text for one in find_references((text,))] == [
        "${secret.db.password}",
        "${secret.db.user}",
        "${secret.x.y}",
        "${secret.db.no}",
    ]


def test_a_key_that_a_secret_does_not_have_is_named() -> None:
    """The secret and the key, and no value; a reference to what is no secret is a text."""
    assert missing_key(["${secret.db.no}"], VALUES) == "secret db has no key 'no'"
    assert missing_key(["${secret.x.y} ${secret.db.user}"], VALUES) == ""


def test_values_of_inputs_are_texts() -> None:
    """Neither a variable of a template, which others may have written, nor a secret is read for references."""
    launch = with_values(
        TaskLaunch(env={"A": "${HOME} ${secret.db.user}", "B": "own"}),
        {"B": "${secret.db.user} ${HOME}"},
        {SecretReference("db", "user"): "r${HOME}"},
    )
    env = launch_environment(launch, {"HOME": "/h"})
    assert env == {"HOME": "/h", "A": "/h r${HOME}", "B": "${secret.db.user} ${HOME}"}
    words = ["${A}", "${B}", "${secret.db.user}", "${secret.x.y}"]
    assert fill_options(words, launch, env) == [env["A"], env["B"], "r${HOME}", "${secret.x.y}"]


def test_a_launch_holds_values_beside_its_texts() -> None:
    """What the role composed stays as it is; a text for people has no value."""
    launch = with_values(TaskLaunch(env={"P": REFERENCE}), {}, VALUES)
    assert launch.env == {"P": REFERENCE}
    assert fill_secrets(launch.env, launch) == {"P": VALUES[PASSWORD]}
    assert "p&ss" not in repr(launch)
    plain = TaskLaunch(env={"P": REFERENCE})
    assert with_values(plain, {}, {}) is plain
    assert fill_secrets(plain.env, plain) == {"P": REFERENCE}


@pytest.mark.parametrize(
    "text",
    [
        "no such file: p&ss ${secret.db.user}",
        "GET /x?t=p%26ss%20%24%7Bsecret.db.user%7D",
        "GET /x?t=p%26ss+%24%7Bsecret.db.user%7D",
    ],
)
def test_a_reason_shows_the_reference(text: str) -> None:
    """Whatever form of a URL the value has."""
    found = masked(text, VALUES)
    assert REFERENCE in found
    assert "ss" not in found.replace("password", "")


def test_lines_quotes_and_short_values_are_masked() -> None:
    """Each line of a value, its form in Python and in JSON; a short value as a word alone."""
    many = {SecretReference("a", "b"): "one\"two\nthree'four"}
    for text in (
        "at three'four",
        repr(many[SecretReference("a", "b")]),
        "x one\\\"two\\nthree'four y",
    ):
        assert "four" not in masked(text, many)
    short = {SecretReference("a", "b"): "x"}
    assert masked("exit x of max", short) == "exit ${secret.a.b} of max"
    assert masked("nothing", {SecretReference("a", "b"): ""}) == "nothing"


def test_what_is_left_of_a_cut_value_is_masked() -> None:
    """Reasons are cut: the beginning of a value tells as much. Values that overlap leave nothing between them."""
    token = SecretReference("a", "token")
    values = {token: "abcabcabcabcX" + "y" * 500, SecretReference("a", "line"): "l" * 20 + "\nmmmm"}
    cut = "exit code 1: KEY=" + values[token][:300]
    assert masked(cut, values) == "exit code 1: KEY=${secret.a.token}"
    assert masked(f"destination {values[token][:80]!r} leaves", values) == (
        "destination '${secret.a.token}' leaves"
    )
    assert masked("abc" + values[token], values) == "${secret.a.token}"
    assert masked("x llllllllllllll", values) == "x ${secret.a.line}"
    assert masked("abcabc is short enough to be anything", values).startswith("abcabc is")


def test_what_nomad_interpolates_is_filled_in() -> None:
    """Source, options, headers and destination of an artifact; source and destination of a template, not its data."""
    filled = FilledInputs({"secret": Source()})
    artifact = an_input(
        "artifact",
        ArtifactInput(source=REFERENCE, options={"o": REFERENCE}, headers={"h": REFERENCE}),
    )
    template = an_input(
        "template", TemplateInput(data=REFERENCE, destination="local/${secret.db.user}")
    )
    about, one = asyncio.run(filled.fill(context(inputs=(SECRET, template)), artifact))
    found = msgspec.json.decode(one.spec, type=ArtifactInput)
    value = VALUES[PASSWORD]
    assert (found.source, found.options, found.headers) == (value, {"o": value}, {"h": value})
    assert about.launch.env == {"P": value}
    _, one = asyncio.run(filled.fill(context(), template))
    written = msgspec.json.decode(one.spec, type=TemplateInput)
    assert (written.data, written.destination) == (REFERENCE, "local/root")
    assert msgspec.json.decode(about.inputs[1].spec, type=TemplateInput) == written


def test_what_this_life_has_not_fetched_is_fetched_first() -> None:
    """A template of a task that was adopted; a key that the secret lacks is final."""
    source = Source(has=False)
    filled = FilledInputs({"secret": source})
    template = an_input("template", TemplateInput(data="x", destination="local/x"))
    about, _ = asyncio.run(filled.fill(context(), template))
    assert (source.asked, about.launch.env["P"]) == (["secret"], VALUES[PASSWORD])
    wrong = context(launch=TaskLaunch(env={"P": "${secret.db.no}"}))
    with pytest.raises(InputFailed, match="has no key 'no'") as err:
        asyncio.run(filled.fill(wrong, template))
    assert err.value.recoverable is False


def test_events_and_faults_of_a_handler_have_no_value() -> None:
    """A template that may read a variable with a secret can turn it into anything: its reason is not shown."""
    told: list[str] = []
    filled = FilledInputs({"secret": Source()})
    plain = an_input("template", TemplateInput(data="x", destination="local/x"))
    about = context(note=lambda _, text: told.append(text))
    seen, _ = asyncio.run(filled.fill(about, plain))
    seen.note("Template", f"Missing: {VALUES[PASSWORD]}")
    assert told == [f"Missing: {REFERENCE}"]
    failed = InputFailed(f"bad {VALUES[PASSWORD]}", recoverable=True, kind="K")
    shown = filled.shown(about, plain, failed)
    assert (str(shown), shown.recoverable, shown.kind) == (f"bad {REFERENCE}", True, "K")
    reads = an_input("template", TemplateInput(data='{{ env "P" }}', destination="local/x"))
    assert str(filled.shown(about, reads, failed)) == f"local/x: {HIDDEN}"


def test_a_start_without_its_values_is_known() -> None:
    """It is not made; a task without secrets needs none."""
    with pytest.raises(KeyError):
        FilledInputs({"secret": Source(has=False)}).values("a", "t", (SECRET,))
    assert FilledInputs({}).values("a", "t", (SECRET,)) == {}


def secret_story() -> Story:
    """A task with a secret, a template that is followed, and references in both."""
    task = task_json(
        Secrets=[{"Name": "db", "Provider": "nomad", "Path": "nomad/jobs/${NOMAD_JOB_ID}"}],
        Env={"P": REFERENCE},
        Templates=[{"EmbeddedTmpl": '{{ nomadService "a" }}', "DestPath": "local/x"}],
    )
    return Story(job=job_json(task)).hear(5, alloc())


def test_the_role_sees_references_alone() -> None:
    """A secret is the first input, its path filled in; environment and options keep the reference for the edge."""
    story = secret_story()
    (effect,) = story.did(PrepareTask)
    assert [one.name for one in effect.inputs] == ["secret.db", "template[0]"]
    spec = msgspec.json.decode(effect.inputs[0].spec, type=SecretInput)
    assert (spec.secret, spec.path) == ("db", "nomad/jobs/j")
    story.step(answer(effect))
    (start,) = story.did(StartTask)
    assert start.launch.env["P"] == REFERENCE


def test_a_secret_is_in_memory() -> None:
    """A restart of the task asks for nothing; another life of the agent asks for the secret alone, once it starts."""
    story = secret_story()
    (effect,) = story.did(PrepareTask)
    story.step(answer(effect)).started().exited(1).wait(60)
    assert not story.did(PrepareTask)
    assert story.starts()[-1] == ("main", 2)
    again = story.restarted()
    again.step(TaskGone(key=7, task="main", run=2, started=False)).hear(6, alloc())
    (effect,) = again.did(PrepareTask)
    assert [one.name for one in effect.inputs] == ["secret.db"]


def test_what_is_followed_is_said_with_the_secrets_that_it_needs() -> None:
    """Another life of the agent, which did not start the run, has no values yet; a digest of them is not followed."""
    story = secret_story()
    (effect,) = story.did(PrepareTask)
    story.step(answer(effect)).started()
    (watch,) = story.did(WatchInputs)
    assert [one.name for one in watch.inputs] == ["secret.db", "template[0]"]
    assert list(watch.digests) == ["template[0]"]
