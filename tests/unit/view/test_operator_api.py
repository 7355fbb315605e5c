"""The operator API of the view: what it asks the plan applier for, and when it says that it is so."""

import msgspec
import pytest

from schemas.allocations import AllocationsCollected, AllocationsDisplaced
from schemas.base import JobId
from schemas.evaluations import EvaluationEnded, EvaluationsCollected
from schemas.jobs import JobsCollected, JobStopped
from schemas.nodes import (
    Instance,
    NodeDrainChanged,
    NodeEligibilityChanged,
    NodeMetaChanged,
    Pool,
    PoolDeclared,
)
from schemas.policy import OperatorRefused, Policy, PolicyChanged
from services.view.operator_verbs import PREPARE
from services.view.volume_verbs import VOLUME_VERBS
from shared.core.runtime.messages import Effect, Message, Reply, Send, Timer
from shared.core.state.ids import make_key
from shared.protocol import subjects
from shared.protocol.operator_verbs import VERBS, OperatorVerb
from shared.release import RELEASE
from tests.unit.view.view_story import MS, Story

TOKEN = 77


def wish(noun: str, verb: str, **body: object) -> Message:
    data = msgspec.json.encode(body)
    return Message(f"door-{noun}", subjects.api(noun, verb), data, TOKEN, reply=True)


def sent(effects: list[Effect]) -> list[dict[str, object]]:
    """Commands on their way to the plan applier."""
    batches = [e.data for e in effects if isinstance(e, Send) and e.subject == "cmd.operator"]
    return [one for data in batches for one in msgspec.json.decode(data)["commands"]]


def told(effects: list[Effect]) -> dict[str, object]:
    found = [e.data for e in effects if isinstance(e, Reply) and e.token == TOKEN]
    assert len(found) == 1
    return msgspec.json.decode(found[0])


def silent(effects: list[Effect]) -> bool:
    return not [e for e in effects if isinstance(e, Reply)]


def ready() -> Story:
    story = Story()
    story.node("n1")
    story.node("n2")
    story.start()
    return story


def test_a_changed_policy_is_answered_by_its_event() -> None:
    """Named fields change, the others stay; the answer comes with the fact, not before."""
    story = ready()
    effects = story.feed(wish("operator", "set_policy", change={"algorithm": "spread"}))
    assert silent(effects)
    (command,) = sent(effects)
    wanted = msgspec.to_builtins(Policy(algorithm="spread"))
    assert command["policy"] == wanted
    story.log(PolicyChanged(policy=Policy(algorithm="spread")))
    answer = told(story.feed())
    assert (answer["status"], answer["changed"]) == ("accepted", True)
    assert answer["policy"] == wanted
    assert story.ask("policy")["policy"] == wanted


def test_a_new_writer_is_asked_at_once() -> None:
    """A request that the log does not show goes to the next applier in the step that reads its lease, then no more."""
    story = ready()
    first = sent(story.feed(wish("operator", "set_policy", change={"algorithm": "spread"})))
    story.lease("a2")
    (again,) = sent(story.feed())
    assert again == {**first[0], "seen_seq": len(story.records)}
    story.log(PolicyChanged(policy=Policy(algorithm="spread")))
    story.lease("a3")
    assert not sent(story.feed())


def test_what_is_so_already_is_answered_at_once() -> None:
    """A request that the state fulfils already sends no command."""
    story = ready()
    for message in (
        wish("operator", "set_policy", change={"algorithm": "binpack"}),
        wish("node", "set_eligibility", node_id="n1", eligible=True),
        wish("system", "gc"),
    ):
        effects = story.feed(message)
        assert not sent(effects)
        assert told(effects)["changed"] is False


def test_nonsense_is_refused_at_the_operator_api() -> None:
    """Unknown fields, wrong types, unknown algorithms, nodes and verbs, and a stale hash never reach the applier."""
    story = ready()
    for message, code in (
        (wish("operator", "set_policy", change={"speed": 1}), "invalid"),
        (wish("operator", "set_policy", change={"algorithm": 5}), "invalid"),
        (wish("operator", "set_policy", change={"algorithm": "best"}), "invalid"),
        (wish("operator", "set_policy", change={"delivery_limit": -1}), "invalid"),
        (wish("operator", "set_policy", change={}, policy_hash="x"), "conflict"),
        (wish("operator", "set_policy"), "invalid"),
        (wish("node", "set_eligibility", node_id="n9", eligible=False), "not_found"),
        (wish("node", "set_eligibility", node_id="n", eligible=False), "ambiguous"),
        (wish("node", "explode"), "invalid"),
    ):
        effects = story.feed(message)
        assert not sent(effects)
        answer = told(effects)
        assert (answer["status"], answer["error"]["code"]) == ("refused", code)


def test_a_refusal_in_the_log_is_the_answer() -> None:
    """A refusal of the applier is answered with its reason."""
    story = ready()
    message = wish("node", "set_eligibility", node_id="n1", eligible=False, request_id="r1")
    assert sent(story.feed(message))[0]["node_id"] == "n1"
    story.log(OperatorRefused(request_id="r1", code="not_found", reason="it left"))
    assert told(story.feed())["error"] == {"code": "not_found", "message": "it left"}


def test_a_wish_is_sent_again_until_the_log_shows_it() -> None:
    """A lost command is sent again after half a second; after five seconds the answer is pending."""
    story = ready()
    assert sent(story.feed(wish("node", "set_eligibility", node_id="n2", eligible=False)))
    assert not sent(story.later(Timer("operator", story.now_ns + 100 * MS), ms=100))
    assert sent(story.later(Timer("operator", story.now_ns + 500 * MS), ms=500))
    assert told(story.later(Timer("operator", story.now_ns), ms=5000))["status"] == "pending"
    story.log(NodeEligibilityChanged(row=1, eligible=False))
    assert silent(story.feed())


def test_only_the_node_that_was_meant_answers() -> None:
    """Another node's change is no effect of the wish."""
    story = ready()
    story.feed(wish("node", "set_eligibility", node_id="n2", eligible=False))
    story.log(NodeEligibilityChanged(row=0, eligible=False))
    assert silent(story.feed())
    story.log(NodeEligibilityChanged(row=1, eligible=False))
    assert told(story.feed())["node_id"] == "n2"


def test_a_stop_is_answered_by_its_mark() -> None:
    """The command names the allocation by its key; the answer comes with the fact; again it is so already."""
    story = ready()
    story.job("j", count=1)
    story.plan("j", (0,))
    shown = story.ask("allocs")["allocations"][0]["id"]
    (command,) = sent(story.feed(wish("alloc", "stop", alloc_id=shown[:8])))
    assert command["type"] == "stop_allocation"
    story.log(AllocationsDisplaced(rows=(0,)))
    answer = told(story.feed())
    assert (answer["alloc_id"], answer["changed"]) == (shown, True)
    again = told(story.feed(wish("alloc", "stop", alloc_id=shown)))
    assert (again["status"], again["changed"]) == ("accepted", False)
    missing = told(story.feed(wish("alloc", "stop", alloc_id="ffffffff")))
    assert missing["error"]["code"] == "not_found"


def test_a_drain_has_a_moment_in_log_time() -> None:
    """What is asked as a duration is a moment in the command; the same drain again changes nothing."""
    story = ready()
    effects = story.feed(wish("node", "drain", node_id="n2", draining=True, deadline_ns=5000 * MS))
    (command,) = sent(effects)
    assert command["deadline_ns"] == story.now_ns + 5000 * MS
    story.log(NodeDrainChanged(row=1, draining=True, deadline_ns=command["deadline_ns"]))
    answer = told(story.feed())
    assert (answer["node_id"], answer["deadline_ns"]) == ("n2", command["deadline_ns"])
    line = story.ask("node", id="n2")["nodes"][0]
    assert (line["draining"], line["eligibility"]) == (True, "ineligible")
    (command,) = sent(story.feed(wish("node", "drain", node_id="n2", draining=False)))
    story.log(NodeDrainChanged(row=1, draining=False))
    assert told(story.feed())["changed"] is True
    assert told(story.feed(wish("node", "drain", node_id="n2", draining=False)))["changed"] is False


def test_words_about_a_node_are_told_as_constraints_see_them() -> None:
    """Merged over what the agent says; without a change they are only told."""
    story = ready()
    body = {"node_id": "n1", "change": {"rack": "r7", "gone": None}}
    (command,) = sent(story.feed(wish("node", "set_meta", **body)))
    assert command["change"] == {"gone": None, "rack": "r7"}
    story.log(NodeMetaChanged(node_id="n1", meta={"rack": "r7"}))
    answer = told(story.feed())
    assert (answer["meta"], answer["operator_meta"]) == ({"rack": "r7"}, {"rack": "r7"})
    assert told(story.feed(wish("node", "set_meta", node_id="n1")))["meta"] == {"rack": "r7"}
    assert story.ask("node", id="n1")["meta"] == {"rack": "r7"}


def test_collecting_goes_on_until_nothing_is_left() -> None:
    """One pass may be too small: the command goes out again, and the answer counts all passes."""
    story = Story()
    story.node("n1")
    made = story.job("j")
    story.start()
    story.log(JobStopped(submission_id="stop", digest="d", job_id=JobId("j")))
    story.log(EvaluationEnded(key=make_key(made, 0), status="complete"))
    effects = story.feed(wish("system", "gc"))
    assert sent(effects)[0]["type"] == "collect_garbage"
    story.log(EvaluationsCollected(keys=(make_key(made, 0),)))
    effects = story.feed()
    assert silent(effects)
    assert sent(effects)
    story.log(JobsCollected(job_ids=(JobId("j"),)), AllocationsCollected(rows=()))
    answer = told(story.feed())
    assert answer["collected"] == {"evaluations": 1, "jobs": 1, "allocations": 0}
    assert story.ask("jobs")["total"] == 0


GPUS = Pool(name="device.gpu", instances=(Instance(id="g0"), Instance(id="g1")), vendor="nv")


def test_a_declared_pool_is_answered_by_its_event_and_shown() -> None:
    """The node is found by what it is called; the answer comes with the fact, then node and list show it."""
    story = ready()
    body = msgspec.to_builtins(GPUS)
    effects = story.feed(wish("operator", "declare", node_id="n1", pool=body))
    assert silent(effects)
    (command,) = sent(effects)
    assert (command["type"], command["node_id"]) == ("declare_pool", "n1")
    story.log(PoolDeclared(node_id="n1", pool=Pool(name="other", amount=1)))
    assert silent(story.feed())
    story.log(PoolDeclared(node_id="n1", pool=GPUS))
    answer = told(story.feed())
    assert (answer["status"], answer["changed"], answer["node_id"]) == ("accepted", True, "n1")
    (node,) = story.ask("node", id="n1")["nodes"]
    pool = node["pools"]["device.gpu"]
    assert (pool["kind"], pool["capacity"], pool["free"]) == ("indexed", 20_000, 20_000)
    assert [one["id"] for one in pool["instances"]] == ["g0", "g1"]
    (line,) = [one for one in story.ask("resources")["pools"] if one["name"] == "device.gpu"]
    assert (line["nodes"], line["capacity"]) == (1, 20_000)
    assert (
        told(story.feed(wish("operator", "declare", node_id="n1", pool=body)))["changed"] is False
    )


def test_what_the_cluster_has_is_an_amount() -> None:
    """Without a node a pool is of the whole cluster; declared with nothing in it, it is no more."""
    story = ready()
    licences = {"name": "lic", "amount": 30_000}
    assert sent(story.feed(wish("operator", "declare", pool=licences)))
    story.log(PoolDeclared(node_id="", pool=Pool(name="lic", amount=30_000)))
    assert told(story.feed())["changed"] is True
    answer = story.ask("resources")
    assert [(one["name"], one["kind"], one["free"]) for one in answer["pools"]] == [
        ("lic", "cluster-wide", 30_000)
    ]
    assert [(one["node"], one["pool"]["name"]) for one in answer["declared"]] == [("", "lic")]
    assert sent(story.feed(wish("operator", "declare", pool={"name": "lic"})))
    story.log(PoolDeclared(node_id="", pool=Pool(name="lic")))
    assert told(story.feed())["changed"] is True
    assert story.ask("resources")["declared"] == []


def test_a_declaration_that_cannot_stand_is_refused_at_the_operator_api() -> None:
    """Unknown nodes, nonsense, instances without a node, and a name that is of another kind elsewhere."""
    story = ready()
    story.log(PoolDeclared(node_id="n2", pool=GPUS))
    story.feed()
    for body, code in (
        ({"node_id": "n9", "pool": {"name": "x", "amount": 1}}, "not_found"),
        ({"pool": {"name": "", "amount": 1}}, "invalid"),
        ({"pool": {"name": "x", "amount": -1}}, "invalid"),
        ({"pool": {"name": "cores", "amount": 1}}, "invalid"),
        ({"pool": {"name": "x", "instances": [{"id": "a"}]}}, "invalid"),
        (
            {"node_id": "n1", "pool": {"name": "x", "amount": 1, "instances": [{"id": "a"}]}},
            "invalid",
        ),
        ({"node_id": "n1", "pool": {"name": "device.gpu", "amount": 10_000}}, "conflict"),
        ({"pool": {"name": "device.gpu", "amount": 10_000}}, "conflict"),
        ({}, "invalid"),
    ):
        effects = story.feed(wish("operator", "declare", **body))
        assert not sent(effects), body
        assert told(effects)["error"]["code"] == code, body


def test_the_release_is_that_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """`query.cluster` tells the release of the package, which is not the version of what decides."""
    story = Story()
    story.start()
    assert story.ask("cluster")["release"] == RELEASE
    monkeypatch.setattr("schemas.envelope.CORE_VERSION", "9.9.9")
    monkeypatch.setattr("shared.query.answers.RELEASE", "7.7.7")
    assert story.ask("cluster")["release"] == "7.7.7"


def test_a_request_that_waits_is_sent_again_with_what_the_view_has_seen() -> None:
    """Copies carry the seq at which they were sent, so that the applier drops those that a newer request overtook."""
    story = ready()
    (first,) = sent(story.feed(wish("node", "drain", node_id="n1", draining=True)))
    assert first["seen_seq"] == len(story.records)
    story.log(NodeMetaChanged(node_id="n1", meta={"rack": "r1"}))
    story.now_ns += 500 * MS
    (second,) = sent(story.feed(Timer("operator", story.now_ns)))
    assert {**second, "seen_seq": 0} == {**first, "seen_seq": 0}
    assert second["seen_seq"] == len(story.records)


@pytest.mark.parametrize(
    ("noun", "verb", "body"),
    [
        ("node", "drain", {"node_id": "n1", "draining": True}),
        ("node", "set_eligibility", {"node_id": "n1", "eligible": False}),
        ("node", "set_meta", {"node_id": "n1", "change": {"rack": "r9"}}),
        ("operator", "declare", {"node_id": "n1", "pool": {"name": "licence", "amount": 5}}),
        ("operator", "set_policy", {"change": {"algorithm": "spread"}}),
    ],
)
def test_a_request_of_a_caller_who_has_not_seen_a_change_is_refused(
    noun: str, verb: str, body: dict[str, object]
) -> None:
    """With `seen_seq` a copy that a silent view reads late is refused at the door; at the newest seq it is taken."""
    story = ready()
    seen = len(story.records)
    story.log(NodeMetaChanged(node_id="n1", meta={"rack": "r1"}))
    story.log(PolicyChanged(policy=Policy(delivery_limit=7)))
    effects = story.feed(wish(noun, verb, **body, seen_seq=seen))
    assert not sent(effects)
    assert told(effects)["error"]["code"] == "conflict"
    (command,) = sent(story.feed(wish(noun, verb, **body, seen_seq=len(story.records))))
    assert command["seen_seq"] == len(story.records)


def test_a_pending_request_that_is_overtaken_is_refused() -> None:
    """A caller who said what he had seen hears of the change that came before his request."""
    story = ready()
    seen = len(story.records)
    assert sent(story.feed(wish("node", "drain", node_id="n1", draining=True, seen_seq=seen)))
    story.log(NodeEligibilityChanged(row=0, eligible=False))
    story.now_ns += 500 * MS
    effects = story.feed(Timer("operator", story.now_ns))
    assert not sent(effects)
    assert told(effects)["error"]["code"] == "conflict"
    assert not len(story.view._operator_api)


@pytest.mark.parametrize(
    ("subject", "body", "key"),
    [
        (subjects.query("plan"), b'{"Job":{"ID":"a"},"Job":{"ID":"b"}}', "Job"),
        (subjects.query("plan"), b'{"Job":{"ID":"a","ID":"b"}}', "ID"),
        (subjects.query("plan"), b'{"Job":{},"\\u004aob":{}}', "Job"),
        (subjects.query("jobs"), b'{"limit":1,"limit":2}', "limit"),
        (subjects.api("node", "drain"), b'{"node_id":"n1","node_id":"n2"}', "node_id"),
        (
            subjects.api("operator", "set_policy"),
            b'{"change":{"algorithm":"a","algorithm":"b"}}',
            "algorithm",
        ),
    ],
)
def test_a_key_that_comes_twice_is_refused(subject: str, body: bytes, key: str) -> None:
    """As a submission refuses it: of two values neither is meant more than the other."""
    source = "query" if subject.startswith("query") else f"door-{subject.split('.')[1]}"
    effects = ready().feed(Message(source, subject, body, TOKEN, reply=True))
    assert not sent(effects)
    error = told(effects)["error"]
    assert isinstance(error, dict)
    assert (error["code"], error["message"]) == ("invalid", f"duplicate key '{key}'")


def test_every_operator_verb_is_prepared() -> None:
    """Each row of the table of verbs has its function in the view, and no function is without a row."""
    assert sorted(PREPARE | VOLUME_VERBS) == sorted(row.name for row in VERBS)


@pytest.mark.parametrize("row", VERBS, ids=lambda row: row.name)
def test_an_unknown_parameter_is_refused(row: OperatorVerb) -> None:
    """A slip leads to no command, and is named with what there is, before anything else is said."""
    story = ready()
    noun, _, verb = row.name.partition(".")
    effects = story.feed(wish(noun, verb, no_such=True))
    answer = told(effects)
    assert answer["error"]["code"] == "invalid" and answer["error"]["path"] == "no_such"  # type: ignore[index]
    assert row.request.__struct_encode_fields__[0] in answer["error"]["message"]  # type: ignore[index]
    assert not sent(effects)


def test_a_slip_inside_a_request_is_refused() -> None:
    """Parts of a request are read as strictly as the request."""
    pool = {"name": "licence", "amount": 1, "vendr": "x"}
    answer = told(ready().feed(wish("operator", "declare", pool=pool)))
    assert answer["error"]["path"] == "pool.vendr"  # type: ignore[index]
