"""Identities of services and claims of a block's own: each rule has an error with its path; who gets which token."""

from typing import Any

import msgspec
import pytest

from shared.jobspec.checks.job import job_errors
from shared.jobspec.compile.groups import group_digest
from shared.jobspec.extra_claims import filled_claims
from shared.jobspec.identities import accepted_without, group_identities
from shared.jobspec.nomad.job import JOB_DECODER
from shared.jobspec.strict_json import canonical_json
from shared.jobspec.submission import read_submission

SECOND = 1_000_000_000
ONE = {"Audience": ["consul.io"], "TTL": 3600 * SECOND}
TOP = "Job.TaskGroups[0]."


def job(
    *services: dict[str, Any], tasks: tuple[dict[str, Any], ...] = ({},), **more: Any
) -> dict[str, Any]:
    """A job `j` with these services of its group `g`, and tasks t0, t1 and so on."""
    made = [
        {"Name": f"t{at}", "Driver": "raw_exec", "Config": {"command": "x"}, **one}
        for at, one in enumerate(tasks)
    ]
    group = {"Name": "g", "Services": [service(one) for one in services], "Tasks": made}
    return {"ID": "j", "Name": "j", "TaskGroups": [group], **more}


def service(more: dict[str, Any]) -> dict[str, Any]:
    return {"Name": "web", "Provider": "nomad", **more}


def errors(said: dict[str, Any]) -> dict[str, str]:
    found = job_errors(JOB_DECODER.decode(msgspec.json.encode(said)))
    return {one.path.removeprefix(TOP): one.message for one in found}


def given(said: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """By task: identity and service of each token that it may be given."""
    text = msgspec.json.encode(said)
    read = JOB_DECODER.decode(text)
    found = group_identities(read, read.groups[0], accepted_without(text))
    return {name: [(one.name, one.service) for one in ones] for name, ones in found.items()}


# ---- who gets the token ----


def test_a_services_token_is_its_tasks() -> None:
    """Of a task's service that task; of a group's service the one that it names, or the only one of the group."""
    own = service({"Name": "api", "PortLabel": "8080", "Identity": {**ONE, "File": True}})
    named = {"TaskName": "t1", "Identity": {**ONE, "Name": "mine"}}
    said = job(named, tasks=({"Services": [own]}, {"Identity": {"File": True}}))
    assert errors(said) == {}
    assert given(said) == {
        "t0": [("service_api-8080", "api")],
        "t1": [("default", ""), ("mine", "web")],
    }
    assert given(job({"Identity": ONE})) == {"t0": [("service_web", "web")]}
    assert given(job({"Name": "", "Identity": ONE})) == {"t0": [("service_j-g-group", "j-g-group")]}


@pytest.mark.parametrize("wish", [{"File": True}, {"Env": True}])
def test_a_token_that_several_tasks_could_have_needs_a_task(wish: dict[str, bool]) -> None:
    """A token in the hands of each sidecar is not what the job asked for; a block without a wish names none."""
    several = ({}, {})
    assert errors(job({"Identity": ONE}, tasks=several)) == {}
    (path, text), *rest = errors(job({"Identity": {**ONE, **wish}}, tasks=several)).items()
    assert (path, rest) == ("Services[0].TaskName", [])
    assert "must set task" in text
    assert errors(job({"TaskName": "t1", "Identity": {**ONE, **wish}}, tasks=several)) == {}


@pytest.mark.parametrize(
    ("block", "path", "part"),
    [
        ({"Name": "a b"}, "Name", "must be 1 to 128"),
        ({"Name": "default", "TTL": 0}, "Name", "an identity of the task"),
        ({"Name": "vault_default"}, "Name", "an identity of the task"),
        ({"ServiceName": "other"}, "ServiceName", "must be the name of the service, 'web'"),
        ({"Audience": [""]}, "Audience", "must not be empty"),
        ({"TTL": 5}, "TTL", "must be 1s"),
        ({"ChangeMode": "script"}, "ChangeMode", "must be one of"),
        ({"Filepath": "local/x"}, "Filepath", "needs file = true"),
        ({"File": True, "Filepath": "../../x"}, "Filepath", "must not leave"),
        ({"ExtraClaims": ["x"]}, "ExtraClaims", "must be a map"),
    ],
)
def test_every_rule_names_its_field(block: dict[str, Any], path: str, part: str) -> None:
    """Those of a task's identity hold, and the service's name is the only one that a block may repeat."""
    found = errors(job({"Identity": {**ONE, **block}}))
    assert list(found) == [f"Services[0].Identity.{path}"]
    assert part in found[f"Services[0].Identity.{path}"]


def test_names_and_files_are_unique_in_the_task_that_is_given_them() -> None:
    """Beside its own identities, its templates and its token of Vault."""
    mine = {**ONE, "Name": "mine", "File": True}
    assert list(errors(job({"Identity": mine}, tasks=({"Identities": [mine]},)))) == [
        "Services[0].Identity.Name",
        "Services[0].Identity.Filepath",
    ]
    template = {"EmbeddedTmpl": "x", "DestPath": "secrets/nomad_mine.jwt"}
    for task in ({"Templates": [template]}, {"Vault": {}}):
        block = mine if "Templates" in task else {**mine, "Filepath": "secrets/vault_token"}
        assert list(errors(job({"Identity": block}, tasks=(task,)))) == [
            "Services[0].Identity.Filepath"
        ]


def test_a_name_that_cannot_be_made_of_the_service_has_to_be_set() -> None:
    """Where a token is given; names of jobs may have what names of identities may not."""
    odd = job({"Name": "", "Identity": {**ONE, "File": True}}, Name="a b")
    assert errors(odd)["Services[0].Identity.Name"].endswith("; set it")
    assert errors(job({"Name": "", "Identity": ONE}, Name="a b")) == {}


def test_a_tasks_identity_names_no_service() -> None:
    """The field is of a service's block."""
    task = {"Identities": [{**ONE, "Name": "x", "ServiceName": "web"}]}
    assert list(errors(job(tasks=(task,)))) == ["Tasks[0].Identities[0].ServiceName"]


def test_a_job_that_was_accepted_without_gets_none() -> None:
    """An earlier release recorded it; nor are claims made that it did not know."""
    own = service({"Identity": {**ONE, "Name": "own", "File": True}})
    said = job({"Identity": {**ONE, "File": True}}, tasks=({"Services": [own]},))
    said["AcceptedUnbuilt"] = [f"{TOP}Services[0].Identity"]
    assert given(said) == {"t0": [("own", "web")]}
    said["AcceptedUnbuilt"] += [f"{TOP}Tasks[0].Services"]
    assert given(said) == {"t0": []}
    claims = {"Identities": [{**ONE, "Name": "x", "ExtraClaims": {"a": "b"}}]}
    text = msgspec.json.encode(
        job(tasks=(claims,), AcceptedUnbuilt=[f"{TOP}Tasks[0].Identities[0].ExtraClaims"])
    )
    read = JOB_DECODER.decode(text)
    (one,) = group_identities(read, read.groups[0], accepted_without(text))["t0"]
    assert one.block.extra_claims == {}


def test_a_token_that_is_given_replaces_running_tasks() -> None:
    """A task gets its tokens when it starts; an identity without file and env changes in place, as its service does."""

    def digest(**identity: Any) -> str:
        return group_digest(job({"Identity": identity})["TaskGroups"][0], None)

    plain = group_digest(job({})["TaskGroups"][0], None)
    assert digest(**ONE) == digest(**ONE, Name="x") == plain
    assert len({plain, digest(**ONE, File=True), digest(**ONE, Env=True)}) == 3


def test_what_is_unsafe_is_a_warning() -> None:
    """Of tokens that a task is given."""

    def warnings(identity: dict[str, Any]) -> tuple[str, ...]:
        return read_submission(
            canonical_json({"Job": job({"Identity": identity})}), "submit"
        ).warnings

    assert warnings({}) == ()
    (text,) = warnings({"File": True})
    assert text.split("; ") == [
        "identity 'service_web' of service 'web' has no aud: every service accepts its token",
        "identity 'service_web' of service 'web' has no ttl: its token does not expire",
    ]


# ---- claims of the block's own ----


def claim_errors(claims: Any) -> dict[str, str]:
    task = {"Identities": [{**ONE, "Name": "x", "ExtraClaims": claims}]}
    prefix = "Tasks[0].Identities[0].ExtraClaims"
    return {path.removeprefix(prefix): text for path, text in errors(job(tasks=(task,))).items()}


def test_claims_have_known_references_and_bounds() -> None:
    """Each error names the claim; what is a token later stays within what verifiers read."""
    assert claim_errors({"id": "${job.id}.${ group.name }", "plain": "$x {y}"}) == {}
    assert claim_errors({f"n{at}": "x" for at in range(17)}) == {
        "": "17 claims, at most 16 are allowed"
    }
    assert list(claim_errors({"a b": "x"})) == [""]
    assert list(claim_errors({"x" * 65: "x"})) == [""]
    assert "bytes as JSON" in claim_errors({"a": "x" * 2_048})[""]
    assert "17 references" in claim_errors({"a": "${job.id}" * 17})[""]
    assert "is none of job.region" in claim_errors({"a": "${vault.role}"})[".a"]
    assert claim_errors({"a": "${job.id"})[".a"] == "a reference does not end"
    assert claim_errors({"a": "x\n"})[".a"] == "must have printable characters alone"


def test_references_are_filled_in_once() -> None:
    """A value is not read for references; a name that is not known is empty."""
    values = {"job.id": "${group.name}", "group.name": "g"}
    assert filled_claims({"a": "${job.id}-${group.name}-${node.id}"}, values) == {
        "a": "${group.name}-g-"
    }
