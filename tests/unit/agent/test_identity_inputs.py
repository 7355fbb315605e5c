"""Identities of a task on its node: which are inputs, what their change does, and what an answer of the keeper is."""

import asyncio
from typing import Any

import msgspec
import pytest

from schemas.identities import IdentityAnswers, SignedIdentity
from services.agent.inputs.identities.handler import retry_pause_s
from services.agent.inputs.identities.keeper_tokens import (
    KeeperTokens,
    TokenRefused,
    TokenUnavailable,
)
from services.agent.inputs.identities.token_times import TokenTimes
from services.agent.tasks.resolved_group import resolve_group
from shared.core.runtime import agent_messages
from shared.core.runtime.agent_messages import (
    InputChanged,
    PrepareTask,
    SignalTask,
    WatchInputs,
)
from shared.core.runtime.input_specs import IdentityInput
from shared.jobspec.checks.unsupported_fields import ACCEPTED_UNBUILT
from tests.fixed_tokens import CLUSTER, NODE, KeeperConnection
from tests.unit.agent.agent_story import SECOND, Story, alloc, job_json, task_json

VAULT = {"Name": "vault", "Audience": ["vault.io"], "File": True, "TTL": 3600 * SECOND}
RESTART = {**VAULT, "ChangeMode": "restart", "Env": True}
HUP = {**VAULT, "Name": "hup", "ChangeMode": "signal", "ChangeSignal": "SIGHUP"}
ONE = "identity[vault]"


# ---- which are inputs ----


def inputs_of(job: dict[str, Any]) -> list[tuple[str, IdentityInput]]:
    plan = resolve_group(msgspec.json.encode(job), "g")
    return [
        (one.name, msgspec.json.decode(one.spec, type=IdentityInput))
        for one in plan.tasks[0].inputs
        if one.kind == "identity"
    ]


def test_only_what_is_given_to_the_task_is_an_input() -> None:
    """The default one and named ones with `env` or `file`; none for a block that asks for neither."""
    job = job_json(
        task_json(
            Identity={"Env": True, "File": True},
            Identities=[RESTART, {"Name": "unused", "Audience": ["x"]}],
        )
    )
    default = IdentityInput(
        identity="default", env=True, file="secrets/nomad_token", driver="raw_exec"
    )
    vault = IdentityInput(
        identity="vault",
        env=True,
        file="secrets/nomad_vault.jwt",
        ttl_ns=3600 * SECOND,
        driver="raw_exec",
    )
    assert inputs_of(job) == [("identity[default]", default), (ONE, vault)]


def test_they_come_before_artifacts_and_templates() -> None:
    """In the order of events; only what expires is followed."""
    template = {"EmbeddedTmpl": "x", "DestPath": "local/x"}
    job = job_json(task_json(Identity={"Env": True}, Identities=[VAULT], Templates=[template]))
    inputs = resolve_group(msgspec.json.encode(job), "g").tasks[0].inputs
    assert [one.name for one in inputs] == ["identity[default]", ONE, "template[0]"]
    assert [one.on_change is not None for one in inputs] == [False, True, False]
    assert all(one.in_memory for one in inputs[:2])


def test_a_services_token_is_an_input_of_its_task() -> None:
    """After the task's own, with the places of a named one; it is renewed and performs its change_mode alike."""
    block = {"Audience": ["x"], "File": True, "TTL": 60 * SECOND, "ChangeMode": "restart"}
    service = {"Name": "db", "Provider": "nomad", "Identity": block}
    job = job_json(task_json(Identity={"Env": True}, Services=[service]))
    assert inputs_of(job)[1:] == [
        (
            "identity[service_db]",
            IdentityInput(
                identity="service_db",
                file="secrets/nomad_service_db.jwt",
                ttl_ns=60 * SECOND,
                driver="raw_exec",
            ),
        )
    ]
    (_, found) = resolve_group(msgspec.json.encode(job), "g").tasks[0].inputs
    assert found.on_change is not None and found.on_change.mode == "restart"


def test_a_job_accepted_without_its_identities_gets_none() -> None:
    """Its text says so; a token that its release did not know is not made by a newer one."""
    job = job_json(task_json(Identity={"Env": True}, Identities=[VAULT]))
    top = "Job.TaskGroups[0].Tasks[0]"
    assert inputs_of({**job, ACCEPTED_UNBUILT: [f"{top}.Identity", f"{top}.Identities"]}) == []
    (one,) = inputs_of({**job, ACCEPTED_UNBUILT: [f"{top}.Identities"]})
    assert one[0] == "identity[default]"


# ---- what the role does ----


def running(*blocks: dict[str, Any]) -> Story:
    """A running task with these identities."""
    story = Story(job=job_json(task_json("main", Identities=list(blocks)))).hear(5, alloc())
    assert not story.starts()
    for effect in story.did(PrepareTask):
        story.step(agent_messages.prepared_inputs(effect))
    return story.started()


def change(name: str = ONE, digest: str = "new", run: int = 1) -> InputChanged:
    return InputChanged(key=7, task="main", run=run, input=name, digest=digest)


def events(story: Story) -> list[tuple[str, str]]:
    return [(one.kind, one.message) for one in story.state().tasks["main"].events]


def signals(story: Story) -> list[str]:
    return [one.signal for one in story.did(SignalTask)]


def test_a_start_waits_for_its_tokens() -> None:
    """The task is pending until the answer; the effect names what is followed from its start on."""
    story = Story(job=job_json(task_json("main", Identities=[VAULT]))).hear(5, alloc())
    story.wait(600)
    assert story.state().status == "pending"
    (effect,) = story.did(PrepareTask)
    story.step(agent_messages.prepared_inputs(effect)).started()
    assert story.state().status == "running"
    (watch,) = story.did(WatchInputs)
    assert [one.name for one in watch.inputs] == [ONE]


def test_a_renewal_restarts_without_an_attempt() -> None:
    """At once, and the next run begins with the token that is there."""
    story = running(RESTART)
    story.step(change()).exited(None, signal=15)
    assert ("Restart Signaled", f"{ONE} was signed anew") in events(story)
    assert story.starts()[-1] == ("main", 2)
    assert not story.did(PrepareTask)
    assert all(kind != "Restarting" for kind, _ in events(story))


def test_only_what_changed_acts() -> None:
    """S64: of two identities each performs its own change_mode; noop is nothing."""
    story = running({**VAULT, "Name": "quiet"}, HUP, RESTART)
    story.step(change("identity[quiet]"))
    assert (signals(story), story.starts()) == ([], [("main", 1)])
    story.step(change("identity[hup]"))
    assert signals(story) == ["SIGHUP"]
    assert events(story)[-1] == ("Signaling", "SIGHUP: identity[hup] was signed anew")
    story.step(change())
    assert signals(story) == ["SIGINT"]


def test_another_life_of_the_agent_leaves_the_task_alone() -> None:
    """S66: the token of the journal is no change; another one is, and the next start has a token made for it."""
    story = running(RESTART)
    again = story.restarted().hear(6, alloc()).started(adopted=True)
    (watch,) = again.did(WatchInputs)
    known = watch.digests[ONE]
    again.step(change(digest=known)).wait(60)
    assert (signals(again), again.starts()) == ([], [])
    assert signals(again.step(change())) == ["SIGINT"]
    other = story.restarted("b3").hear(6, alloc()).started(adopted=True).exited(1).wait(60)
    (effect,) = other.did(PrepareTask)
    assert [one.name for one in effect.inputs] == [ONE]


# ---- times ----


def test_a_failed_renewal_is_tried_more_often_towards_the_end() -> None:
    """Up to an hour while there is time, half of what is left then, and soon again once the token is worthless."""
    assert retry_pause_s(3600.0, 90_000.0) == 3600.0
    assert retry_pause_s(3600.0, 600.0) == 300.0
    assert retry_pause_s(3600.0, 1.0) == 1.0
    assert retry_pause_s(3600.0, 0.0) == 10.0


def test_times_of_another_boot_are_over() -> None:
    """A token that was received later than now is not counted as one that lives."""
    times = TokenTimes(mark="m", received_s=100.0, life_s=60)
    assert [times.left_s(at) for at in (100.0, 130.0, 161.0, 99.0)] == [60.0, 30.0, -1.0, 0.0]


# ---- answers of the keeper ----


def asked(bus: KeeperConnection, alloc_id: str = "a1", name: str = "vault") -> Any:
    tokens = KeeperTokens(NODE, lambda: CLUSTER)
    tokens.bus = lambda: bus.client
    return asyncio.run(tokens.signed(alloc_id, "main", name))


def test_a_token_comes_sealed_for_its_question() -> None:
    """With its life, by the keeper's clock; no two questions have one key, and no answer shows a token."""
    bus = KeeperConnection()
    bus.keeper.ttl_s = 60
    found = asked(bus)
    assert (found.token, found.life_s) == (f"{bus.keeper.prefix}.vault.1", 60)
    asked(bus)
    first, second = bus.keeper.asks
    assert (first.alloc_id, first.task, first.names) == ("a1", "main", ("vault",))
    assert first.public != second.public
    assert b"marker" not in b"".join(bus.given)


@pytest.mark.parametrize("other", [{"alloc_id": "a2"}, {"name": "aws"}, {}])
def test_an_answer_to_another_question_is_no_token(other: dict[str, str]) -> None:
    """Of another allocation or identity, and one of the same that is replayed: as if none had come (A8)."""
    bus = KeeperConnection()
    asked(bus, **{"alloc_id": "a1", **other})
    bus.replayed = bus.given[0]
    with pytest.raises(TokenUnavailable, match="cannot be used"):
        asked(bus)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"identities":[]}',
        b'{"identities":[{"name":"vault","sealed":"AA=="}]}',
        msgspec.json.encode(IdentityAnswers(identities=(SignedIdentity(name="vault"),) * 2)),
    ],
)
def test_bytes_that_are_no_answer_are_no_token(body: bytes) -> None:
    """Asked again later."""
    bus = KeeperConnection()
    bus.replayed = body
    with pytest.raises(TokenUnavailable, match="cannot be used"):
        asked(bus)


@pytest.mark.parametrize("token", ["a b", "a\nX=1", "", "a\0", "x" * 65_537])
def test_a_text_that_is_no_token_is_not_taken(token: str) -> None:
    """It would be a line of an environment."""
    bus = KeeperConnection()
    bus.keeper.text = token
    with pytest.raises(TokenUnavailable, match="holds no token"):
        asked(bus)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("forbidden", TokenRefused),
        ("not_found", TokenRefused),
        ("invalid", TokenRefused),
        ("unavailable", TokenUnavailable),
        ("busy", TokenUnavailable),
    ],
)
def test_a_no_is_told_from_a_not_now(code: str, kind: type[Exception]) -> None:
    """Of a question as a whole and of one identity."""
    bus = KeeperConnection()
    bus.keeper.refusal = code
    with pytest.raises(kind, match=code):
        asked(bus)
    bus.keeper.refusal, bus.keeper.refused = "", {"vault": code}
    with pytest.raises(kind, match=code):
        asked(bus)


def test_without_a_connection_there_is_no_answer_now() -> None:
    """The bus is away, no keeper leads, or the node has not heard of its cluster."""
    bus = KeeperConnection()
    bus.is_silent = True
    with pytest.raises(TokenUnavailable, match="does not answer"):
        asked(bus)
    bus.is_connected = False
    with pytest.raises(TokenUnavailable, match="away"):
        asked(bus)
    tokens = KeeperTokens(NODE, lambda: "")
    with pytest.raises(TokenUnavailable, match="away"):
        asyncio.run(tokens.signed("a1", "main", "vault"))
