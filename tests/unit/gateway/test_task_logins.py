"""A task that logs in with its token: what it may read, for how long, and which tokens are none."""

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.allocations import CLIENT_STATUSES, AllocationsReported
from schemas.base import EvalKey, JobId
from schemas.identities import SigningKeyCreated, SigningKeyRemoved
from schemas.jobs import GroupSpec, JobRegistered
from schemas.plans import GroupPlacement, Origin, PlanCommitted, Stops
from shared.core.state.ids import alloc_id, make_key
from shared.identity_tokens import new_signing_key, public_bytes, sign_token, signing_key_id
from tests import variable_door
from tests.unit.gateway.test_variables import SECRET, Answer, Story

PRIVATES = tuple(new_signing_key() for _ in range(2))
IDS = tuple(signing_key_id(public_bytes(one)) for one in PRIVATES)
OWN = ("nomad/jobs", "nomad/jobs/web", "nomad/jobs/web/g", "nomad/jobs/web/g/server")
OTHERS = (
    *("nomad/jobs/other", "nomad/jobs/web/g/sidecar", "nomad/jobs/web/h", "nomad/jobs/we"),
    *("app/db", "nomad/jobs/web/g/server/x"),
)


class TaskStory(Story):
    """A gateway whose log has a job with an allocation that runs, and both keys."""

    def __init__(self) -> None:
        super().__init__()
        self.log.nodes(1)
        self.log.jobs("web")
        self.alloc = self.place("web")
        for at, private in enumerate(PRIVATES):
            public = public_bytes(private)
            self.log.tx(
                SigningKeyCreated(key_id=IDS[at], algorithm="RS256", public=public, at_ns=1)
            )
        for record in self.log.records[self.role.seq :]:
            self.role.step([record], 0)
        self.own: list[str] = []

    def server(self) -> SimpleNamespace:
        """With a connection of its own, on which it asks for tasks alone."""

        async def request_raw(
            subject: str, body: bytes, *, timeout_s: float
        ) -> tuple[bytes, bytes]:
            self.own.append(subject)
            return b"", await self.ask(subject, body, timeout_s)

        found = super().server()
        found.archive = None
        found.bus = SimpleNamespace(request_raw=request_raw)
        return found

    def place(self, job_id: str) -> str:
        """Have the log place an allocation; return its id."""
        placement = GroupPlacement(
            group="g", version=0, rows=(0,), counts=(1,), names=(0, 1), previous=()
        )
        origin = Origin(worker="w", number=self.log.seq, snapshot_seq=1)
        plan = PlanCommitted(
            key=EvalKey(0), job_id=JobId(job_id), origin=origin, placements=(placement,)
        )
        return alloc_id(make_key(self.log.tx(plan).seq, 0))

    def write(self, *events: Any) -> None:
        """Write facts, which the gateway applies."""
        self.role.step([self.log.tx(*events)], 0)

    def log_in(self, at: int = 0, *, bearer: bool = False, **claims: Any) -> str:
        """Send a token with every request from now on."""
        said = {
            "aud": "nomadproject.io",
            "nbf": 1,
            "nomad_allocation_id": self.alloc,
            "nomad_task": "server",
            **claims,
        }
        token = sign_token(PRIVATES[at], IDS[at], json.dumps(said).encode())
        self.use(token, bearer=bearer)
        return token

    def use(self, token: str, *, bearer: bool = False) -> None:
        """Send this with every request."""
        name, value = (b"authorization", f"Bearer {token}") if bearer else (b"x-nomad-token", token)
        self.headers = {name: value.encode()}


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> TaskStory:
    """With variables of the task, and of others."""
    monkeypatch.setattr(variable_door, "CLUSTER", "c1")
    made = TaskStory()
    for path in (*OWN, *OTHERS):
        assert made.ask_http("PUT", f"/v1/var/{path}", {"Items": {"at": path}}).status == 200
    return made


def refused(answer: Answer) -> str:
    """The reason of a 403."""
    assert answer.status == 403, answer
    text = answer.body.decode()
    assert text.endswith("Permission denied")
    return text


@pytest.mark.parametrize("bearer", [False, True])
def test_a_task_reads_what_is_named_after_it(story: TaskStory, bearer: bool) -> None:  # noqa: FBT001
    """Its four paths, with their items, over the gateway's own connection; others are refused by name."""
    story.log_in(bearer=bearer)
    for path in OWN:
        found = story.ask_http("GET", f"/v1/var/{path}")
        assert (found.status, found.json["Items"]) == (200, {"at": path})
    assert set(story.own) == {"api.variable.get"}
    for path in OTHERS:
        assert "may not read" in refused(story.ask_http("GET", f"/v1/var/{path}"))
    assert len(story.own) == len(OWN)


def test_the_token_of_a_service_is_no_login(story: TaskStory) -> None:
    """It says nothing of a task, whatever audience its block has."""
    for claims in (
        {"nomad_service": "db", "nomad_task": None},
        {"nomad_task": ""},
        {"nomad_task": ["server"]},
    ):
        story.log_in(**claims)
        assert "not one of a task" in refused(story.ask_http("GET", f"/v1/var/{OWN[0]}"))


def test_a_task_lists_what_it_may_read(story: TaskStory) -> None:
    """And no other path, whatever prefix it asks for."""
    story.log_in()
    assert [one["Path"] for one in story.ask_http("GET", "/v1/vars").json] == list(OWN)
    found = story.ask_http("GET", "/v1/vars?prefix=nomad/jobs/web/g").json
    assert [one["Path"] for one in found] == list(OWN[2:])
    assert story.ask_http("GET", "/v1/vars?prefix=app").json == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/v1/var/nomad/jobs/web"),
        ("DELETE", "/v1/var/nomad/jobs/web"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1/nodes"),
        ("PUT", "/v1/jobs"),
        ("GET", "/v1/operator/keyring/keys"),
        ("PUT", "/v1/caravan/code"),
    ],
)
def test_a_task_may_do_nothing_else(story: TaskStory, method: str, path: str) -> None:
    """Neither write what it may read, nor read the cluster, nor draw a code for a browser."""
    story.log_in()
    assert "may only read" in refused(story.ask_http(method, path, {"Items": {"a": "b"}}))
    assert story.own == []


def test_a_child_reads_what_is_its_parents(story: TaskStory) -> None:
    """By the allocation in the log: its own id names no variable."""
    child = JobRegistered(
        submission_id="",
        digest="d",
        job_id=JobId("web/dispatch-1"),
        version=0,
        groups=(GroupSpec(name="g", cpu_mhz=1),),
        parent=JobId("web"),
    )
    story.write(child)
    alloc = story.place("web/dispatch-1")
    story.role.step([story.log.records[-1]], 0)
    story.log_in(nomad_allocation_id=alloc)
    assert story.ask_http("GET", f"/v1/var/{OWN[1]}").status == 200
    refused(story.ask_http("GET", "/v1/var/nomad/jobs/web/dispatch-1"))


@pytest.mark.parametrize("end", ["stopped", "failed", "unknown", "a part", "none"])
def test_the_token_of_an_allocation_that_does_not_run_is_worthless(
    story: TaskStory, end: str
) -> None:
    """From the record on that ends it; and a token that names none, or a part of an id."""
    story.log_in()
    assert story.ask_http("GET", "/v1/vars").status == 200
    if end == "stopped":
        origin = Origin(worker="w", number=1, snapshot_seq=1)
        stops = (Stops(rows=(0,), reason="x"),)
        story.write(PlanCommitted(key=EvalKey(0), job_id=JobId("web"), origin=origin, stops=stops))
    elif end == "failed":
        story.write(AllocationsReported(rows=(0,), statuses=(CLIENT_STATUSES.index("failed"),)))
    else:
        wrong = {"unknown": "f" * 8 + story.alloc[8:], "a part": story.alloc[:8], "none": ""}
        story.log_in(nomad_allocation_id=wrong[end])
    for path in ("/v1/vars", f"/v1/var/{OWN[0]}"):
        assert "does not run" in refused(story.ask_http("GET", path))


def test_the_token_of_a_removed_key_is_worthless(story: TaskStory) -> None:
    """The other key's tokens go on."""
    story.log_in(0)
    story.write(SigningKeyRemoved(key_id=IDS[0]))
    assert "key is not known" in refused(story.ask_http("GET", "/v1/vars"))
    story.log_in(1)
    assert story.ask_http("GET", "/v1/vars").status == 200


def test_a_token_that_is_not_for_this_cluster_is_refused(story: TaskStory) -> None:
    """Another audience, an end that is over, another key, a changed token, and `alg: none`."""
    now_s = int(time.time())
    for claims in ({"aud": "vault.example"}, {"exp": now_s - 3_600}, {"nbf": now_s + 3_600}):
        story.log_in(**claims)
        refused(story.ask_http("GET", "/v1/vars"))
    token = story.log_in()
    unsigned = f"eyJhbGciOiJub25lIn0.{token.split('.')[1]}."
    for bad in (token[:-8] + "AAAAAAAA", unsigned, sign_token(PRIVATES[0], IDS[1], b"{}")):
        story.use(bad)
        refused(story.ask_http("GET", "/v1/vars"))
    assert story.own == []


def test_nothing_of_a_token_is_answered(story: TaskStory) -> None:
    """A refusal says why, and not what it was shown; without a keeper a read is 503."""
    token = story.log_in(aud="x")
    assert token.split(".")[1] not in story.ask_http("GET", "/v1/vars").body.decode()
    story.log_in()
    story.absent = True
    answer = story.ask_http("GET", f"/v1/var/{OWN[0]}")
    assert answer.status == 503 and SECRET not in answer.body.decode()
