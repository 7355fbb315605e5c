"""What a node is given for the identities of its tasks: as the version of the job asks, for an allocation it runs."""

import json
from typing import Any

import msgspec
import pytest

from schemas.base import EvalKey, JobId
from schemas.identities import IdentityAnswers
from schemas.jobs import GroupSpec, JobRegistered
from schemas.plans import Origin, PlanCommitted, Stops
from services.keeper.node_questions import ANSWER_NS, PARTS_MAX, QUESTIONS_MAX
from services.keeper.role import Keeper
from shared.core.runtime.messages import Message
from shared.sim.environment.memory_vault import SignedClaims, unseal_token
from tests.unit.core.state.written_log import WrittenLog
from tests.unit.keeper.keeper_story import PUBLIC, SECOND, Story

TASK = {
    "Name": "server",
    "Identity": {"Name": "default", "File": True},
    "Identities": [
        {"Name": "aws", "Audience": ["sts.amazonaws.com"], "TTL": 90 * SECOND + 1},
        {"Name": "both", "Audience": ["a", "b"]},
        {"Name": "none"},
    ],
}
OTHERS = {"Name": "sidecar"}


def register(log: WrittenLog, job_id: str = "web", *, version: int = 0, **more: Any) -> Any:
    """Register a version of a job with identities."""
    tasks = more.pop("tasks", [TASK, OTHERS])
    spec = json.dumps({"ID": job_id, "TaskGroups": [{"Name": "g", "Tasks": tasks}]}).encode()
    group = GroupSpec(name="g", cpu_mhz=100, memory_mib=64)
    return log.tx(
        JobRegistered(
            submission_id=f"s{log.seq}",
            digest="d",
            job_id=JobId(job_id),
            version=version,
            groups=(group,),
            spec=msgspec.Raw(spec),
            **more,
        )
    )


def running(log: WrittenLog | None = None) -> tuple[Story, str]:
    """A keeper that can sign, and an allocation on node n0."""
    log = log or WrittenLog()
    log.nodes(2)
    register(log)
    story = Story(log)
    alloc = story.place()
    return story.lead(), alloc


def fault(answers: IdentityAnswers) -> tuple[str, str]:
    """Code and reason of a refusal as a whole."""
    error = answers.error
    return ("", "") if error is None else (error.code, error.message)


def signed(story: Story, alloc: str, *names: str, **more: str) -> dict[str, SignedClaims]:
    """The tokens of a question, by name."""
    token = story.ask_identities(alloc, *names, **more)
    story.vault()
    found = story.identities(token)
    assert fault(found) == ("", "")
    return {one.name: unseal_token(one.sealed) for one in found.identities if not one.error}


def test_claims_are_those_of_the_version() -> None:
    """Audience and lifetime stand in the job file; times are the keeper's, in seconds; the vault draws the id."""
    story, alloc = running()
    found = signed(story, alloc, "both", "default", "aws", "none")
    assert list(found) == ["both", "default", "aws", "none"]
    assert {one.key_id for one in found.values()} == {story.role.signing.in_force()}
    now_s = story.now_ns // SECOND
    common = {
        "iat": now_s,
        "nbf": now_s,
        "nomad_namespace": "default",
        "nomad_job_id": "web",
        "nomad_allocation_id": alloc,
        "nomad_task": "server",
    }
    own: dict[str, dict[str, Any]] = {
        "default": {"aud": "nomadproject.io"},
        "aws": {"aud": "sts.amazonaws.com", "exp": now_s + 91},
        "both": {"aud": ["a", "b"]},
        "none": {},
    }
    for name, claims in own.items():
        said = dict(found[name].claims)
        assert said.pop("jti")
        assert said == {**common, **claims, "sub": f"global:default:web:g:server:{name}"}
    assert len({one.claims["jti"] for one in found.values()}) == len(found)


def test_the_answer_says_when_a_token_expires() -> None:
    """In the order of the question, a name that is asked for twice once; 0: it does not expire."""
    story, alloc = running()
    token = story.ask_identities(alloc, "default", "aws", "default")
    story.vault()
    now_s = story.now_ns // SECOND
    found = [(one.name, one.issued_s, one.expires_s) for one in story.identities(token).identities]
    assert found == [("default", now_s, 0), ("aws", now_s, now_s + 91)]


def test_an_issuer_stands_in_every_token() -> None:
    """Where one is set; without it there is no claim `iss`."""
    story, alloc = running()
    assert "iss" not in signed(story, alloc, "aws")["aws"].claims
    heir = Story(story.log, story.store)
    heir.role = Keeper(instance="keeper-2", issuer="https://caravan.example")
    heir.lead()
    assert signed(heir, alloc, "aws")["aws"].claims["iss"] == "https://caravan.example"


def test_a_vault_block_has_an_identity_of_its_own() -> None:
    """With the audience and life of the keeper's settings, and the block's role and namespace; the job may say else."""
    log = WrittenLog()
    own = {"Name": "vault_default", "Audience": ["mine"], "TTL": 60 * SECOND}
    vault = {"Role": "web", "Namespace": "team"}
    plain = {"Name": "server", "Vault": vault}
    said = {"Name": "sidecar", "Vault": {}, "Identities": [own]}
    log.nodes(2)
    register(log, tasks=[plain, said])
    story = Story(log)
    alloc = story.place()
    story.role = Keeper(instance="keeper-1", vault_audience="v.example", vault_life_s=90)
    story.lead()
    found = signed(story, alloc, "vault_default")["vault_default"].claims
    assert (found["aud"], found["exp"] - found["iat"]) == ("v.example", 90)
    assert (found["vault_role"], found["vault_namespace"]) == ("web", "team")
    assert found["sub"] == "global:default:web:g:server:vault_default"
    other = signed(story, alloc, "vault_default", task="sidecar")["vault_default"].claims
    assert (other["aud"], other["exp"] - other["iat"]) == ("mine", 60)
    assert "vault_role" not in other


def test_a_services_token_names_the_service() -> None:
    """As in Nomad: in `sub` in the place of the task, and by `nomad_service`; it is its task's alone to ask for."""
    log = WrittenLog()
    own = {"Name": "db", "Provider": "nomad", "Identity": {"Audience": ["a"], "File": True}}
    log.nodes(2)
    register(log, tasks=[{**TASK, "Services": [own]}, OTHERS])
    story = Story(log)
    alloc = story.place()
    story.lead()
    claims = signed(story, alloc, "service_db")["service_db"].claims
    assert claims["sub"] == "global:default:web:g:db:service_db"
    assert (claims["nomad_service"], claims["aud"]) == ("db", "a")
    assert "nomad_task" not in claims
    (only,) = story.identities(story.ask_identities(alloc, "service_db", task="sidecar")).identities
    assert only.error is not None and only.error.code == "forbidden"


def test_claims_of_the_blocks_own_stand_below_one_claim() -> None:
    """With what the allocation is filled in: no author of a job writes a claim that the keeper makes."""
    said = {
        "sub": "global:default:admin:g:t:default",
        "nomad_job_id": "${job.id}/${group.name}/${task.name}${service.name}",
        "place": "${node.id} ${node.datacenter} ${node.pool} ${job.node_pool} ${job.namespace}",
        "alloc": "${alloc.id}",
    }
    log = WrittenLog()
    log.nodes(2)
    register(log, tasks=[{"Name": "server", "Identities": [{"Name": "x", "ExtraClaims": said}]}])
    story = Story(log)
    alloc = story.place()
    story.lead()
    claims = signed(story, alloc, "x")["x"].claims
    assert (claims["sub"], claims["nomad_job_id"]) == ("global:default:web:g:server:x", "web")
    node = story.role.replica.state.fleet.specs[0]
    assert claims["extra_claims"] == {
        "sub": "global:default:admin:g:t:default",
        "nomad_job_id": "web/g/server",
        "place": f"n0 {node.datacenter} {node.node_pool} default default",
        "alloc": alloc,
    }


def test_a_list_of_claims_of_an_earlier_release_is_none() -> None:
    """A job was accepted without its effect; its text is read on."""
    log = WrittenLog()
    log.nodes(2)
    register(log, tasks=[{"Name": "server", "Identities": [{"Name": "x", "ExtraClaims": ["a"]}]}])
    story = Story(log)
    alloc = story.place()
    story.lead()
    assert "extra_claims" not in signed(story, alloc, "x")["x"].claims


def test_a_name_that_the_version_lacks_is_refused_alone() -> None:
    """The others are signed; a task or its `default` without a block has none."""
    story, alloc = running()
    token = story.ask_identities(alloc, "aws", "gcp")
    story.vault()
    found = story.identities(token).identities
    assert [one.error.code if one.error else "" for one in found] == ["", "forbidden"]
    assert found[1].sealed == b""
    (only,) = story.identities(story.ask_identities(alloc, "default", task="sidecar")).identities
    assert only.error is not None and only.error.code == "forbidden"
    code, reason = fault(story.identities(story.ask_identities(alloc, "default", task="other")))
    assert code == "forbidden" and "no task 'other' in group 'g'" in reason
    assert story.asked == []


def test_another_node_is_given_nothing() -> None:
    """The node is the one of the subject, which no other node may publish."""
    story, alloc = running()
    for node in ("n1", "n9"):
        token = story.ask_identities(alloc, "default", node_id=node)
        assert fault(story.identities(token))[0] == "unavailable"
    assert story.asked == []


@pytest.mark.parametrize("end", ["stopped", "unknown"])
def test_an_allocation_that_does_not_run_is_given_nothing(end: str) -> None:
    """One that was stopped, and one that the log does not know yet: the question may be asked again."""
    story, alloc = running()
    if end == "stopped":
        origin = Origin(worker="w", number=1, snapshot_seq=1)
        stops = (Stops(rows=(0,), reason="x"),)
        stop = PlanCommitted(key=EvalKey(0), job_id=JobId("web"), origin=origin, stops=stops)
        story.step(story.log.tx(stop))
    else:
        alloc = alloc[:-1] + ("0" if alloc[-1] != "0" else "1")
    assert fault(story.identities(story.ask_identities(alloc, "default")))[0] == "unavailable"
    assert story.asked == []


def test_a_child_is_its_parent_to_others() -> None:
    """Launches and dispatches of a job have ids of their own; who binds rights to a job names the job."""
    story, _ = running()
    story.step(register(story.log, "web/periodic-1", parent=JobId("web")))
    alloc = story.place("web/periodic-1")
    claims = signed(story, alloc, "aws")["aws"].claims
    assert (claims["nomad_job_id"], claims["nomad_allocation_id"]) == ("web", alloc)
    assert claims["sub"] == "global:default:web:g:server:aws"


def test_an_allocation_is_judged_by_the_version_that_it_runs() -> None:
    """A newer version of the job that lacks an identity takes nothing from what runs."""
    story, alloc = running()
    assert list(signed(story, alloc, "aws")) == ["aws"]
    story.step(register(story.log, version=1, tasks=[OTHERS]))
    assert list(signed(story, alloc, "aws")) == ["aws"]


def test_a_version_that_is_no_longer_kept_says_so() -> None:
    """There is no text to read audiences from; the reason names the version."""
    story, alloc = running()
    del story.role.replica.state.jobs.versions[JobId("web")]
    code, reason = fault(story.identities(story.ask_identities(alloc, "default")))
    assert code == "unavailable" and "version 0 of job 'web'" in reason


def test_a_newer_key_signs_what_is_asked_for_then() -> None:
    """A rotation is heeded from its fact on."""
    story, alloc = running()
    before = signed(story, alloc, "default")["default"].key_id
    story.rotate(before, "signing")
    story.vault()
    assert signed(story, alloc, "default")["default"].key_id == before
    story.settle()
    assert signed(story, alloc, "default")["default"].key_id == story.role.signing.in_force()
    assert story.role.signing.in_force() != before


def test_without_a_key_nothing_is_signed() -> None:
    """The node asks again: the key is being made, or an operator has to look."""
    story, alloc = running()
    story.store.signing.clear()
    heir = Story(story.log, story.store)
    heir.lead()
    token = heir.ask_identities(alloc, "default")
    heir.vault()
    (one,) = heir.identities(token).identities
    assert one.error is not None and one.error.code == "unavailable"
    assert heir.role.alarms


def test_a_key_store_that_is_restored_signs_again() -> None:
    """The next question finds the key; the alarm ends, and what the log removed is erased of the restored store."""
    story, alloc = running()
    old, before = story.role.signing.in_force(), list(story.store.signing)
    story.rotate(old, "signing")
    story.settle()
    before += story.store.signing[1:]
    story.remove(old)
    story.settle()
    story.store.signing.clear()
    heir = Story(story.log, story.store).lead()
    assert heir.role.alarms
    heir.store.signing.extend(before)
    assert list(signed(heir, alloc, "default")) == ["default"]
    heir.settle()
    assert not heir.role.alarms
    assert heir.store.signing == [heir.role.signing.in_force()] != [old]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{}", "invalid"),
        (b"no json", "invalid"),
        (b"x" * 9_000, "too_large"),
        (b'{"alloc_id":"a","task":"t","names":[],"public":"%s"}', "invalid"),
        (b'{"alloc_id":"a","task":"t","names":["p"],"public":"AA=="}', "invalid"),
        (b'{"alloc_id":"a","task":"t","names":["p"],"public":"%s","aud":"x"}', "invalid"),
    ],
)
def test_a_question_that_cannot_be_is_refused(body: bytes, code: str) -> None:
    """At once, with a code; it cannot name an audience."""
    story, _ = running()
    data = body.replace(b"%s", msgspec.json.encode(PUBLIC).strip(b'"'))
    story.step(Message("node_identities", "ask.n0.identity", data, 900, reply=True))
    assert fault(story.identities(900))[0] == code


def test_too_many_names_or_questions_are_refused() -> None:
    """No node makes more work than it is worth."""
    story, alloc = running()
    names = [f"i{at}" for at in range(PARTS_MAX + 1)]
    assert fault(story.identities(story.ask_identities(alloc, *names)))[0] == "invalid"
    for _ in range(QUESTIONS_MAX):
        story.ask_identities(alloc, "default")
    code, reason = fault(story.identities(story.ask_identities(alloc, "default")))
    assert code == "unavailable" and str(QUESTIONS_MAX) in reason


def test_a_question_that_the_vault_does_not_answer_may_be_asked_again() -> None:
    """After five seconds; what the vault says later goes nowhere."""
    story, alloc = running()
    token = story.ask_identities(alloc, "default")
    story.pass_time(ANSWER_NS / SECOND + 1)
    assert fault(story.identities(token))[0] == "unavailable"
    story.vault()
