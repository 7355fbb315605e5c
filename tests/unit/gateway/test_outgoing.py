"""Events that are sent out: the operator's file, which events go where, repetitions, signatures, annotations."""

import base64
import hashlib
import hmac
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base import SECOND_NS, JobId
from schemas.envelope import AnyEvent, LogRecord
from schemas.jobs import JobRegistered, JobStopped
from services.gateway.outgoing import delivery, grafana
from services.gateway.outgoing.cloud_events import (
    EVENT_BYTES_MAX,
    EventSelector,
    cloud_event,
    event_json,
)
from services.gateway.outgoing.delivery import Attempt, SentPosition
from services.gateway.outgoing.settings import OutgoingSettings, Webhook, parse_settings
from services.gateway.outgoing.signature import key_of, signed_headers
from shared.core.state.state import State
from shared.errors import ConfigInvalid
from tests.unit.view.test_view_variables import put

SECOND = SECOND_NS
PAGER = """
[[webhook]]
name = "pager"
url = "https://hooks.example/caravan"
secret_file = "key"
"""


def read(text: str, name: str = "out.toml") -> OutgoingSettings:
    return parse_settings(text.encode(), name)


# ---- the operator's file ----


def test_the_file_is_toml_or_json() -> None:
    """Both forms give the same settings; an empty file sends nothing."""
    hook = {"name": "pager", "url": "https://hooks.example/caravan", "secret_file": "key"}
    assert read(PAGER) == read(json.dumps({"webhook": [hook]}), "out.json")
    assert read("") == OutgoingSettings()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[webhook]]\nname = 1", "Expected `str`"),
        ("[[webhook]]\nname = 'a'\nurl = 'https://h/'\nsecrets = 'x'", "unknown field"),
        ("nonsense", "out.toml"),
        (PAGER + PAGER, "two webhooks have the name 'pager'"),
        (PAGER.replace('"pager"', '"../x"'), "a name has a-z"),
        (PAGER.replace('"pager"', '"otlp"'), "is not 'otlp'"),
        (PAGER.replace("https:", "http:"), "allow_http = true permits http"),
        (PAGER.replace("https:", "ftp:"), "url must be https://"),
        (PAGER.replace("//hooks", "//me:pw@hooks"), "must not hold a login"),
        (PAGER.replace("/caravan", "/a b"), "percent-encode"),
        (PAGER.replace("/caravan", "/\\r\\nX: y"), "percent-encode"),
        (PAGER.replace(".example/", ".example:99999/"), "url"),
        (PAGER.replace("/caravan", "/#a"), "fragment"),
        (PAGER.replace("secret_file", "token_file"), "token_file is for grafana"),
        ('[[webhook]]\nname = "a"\nurl = "https://h/"', "secret_file is required"),
        (PAGER + 'target = "slack"', "target must be cloudevents or grafana"),
        (PAGER + 'target = "grafana"', "token_file is required"),
        (PAGER + 'kinds = [""]', "empty text"),
        (PAGER + "from_seq = -1", "from_seq"),
        ('[otlp]\nurl = "https://h/"\nsample = 0.0', "sample must be above 0"),
        ('[otlp]\nurl = "http://h/"', "allow_http"),
    ],
)
def test_a_wrong_file_is_refused_with_its_reason(text: str, reason: str) -> None:
    """What is not known, not safe or not complete ends the start, and names the file."""
    with pytest.raises(ConfigInvalid) as refused:
        read(text)
    assert reason in str(refused.value)
    assert "out.toml" in str(refused.value)


# ---- which events ----


def selected(hook: Webhook, *events: AnyEvent) -> list[str]:
    record = LogRecord(
        kind="tx", schema=1, core="c", epoch=1, prev="", t_ns=1_700_000_000_123_456_789,
        events=events,
    )  # fmt: skip
    return [one.id for one in EventSelector(hook, "c1").events(State(), record, 7)]


def registered(job_id: str) -> JobRegistered:
    return JobRegistered(
        submission_id="s", digest="d", job_id=JobId(job_id), version=0,
        spec=msgspec.Raw(b'{"Env":{"PASSWORD":"marker-7f3a"}}'),
    )  # fmt: skip


def stopped(job_id: str) -> JobStopped:
    return JobStopped(submission_id="t", digest="d", job_id=JobId(job_id))


def test_kinds_are_prefixes_and_jobs_are_ids() -> None:
    """Ids name the place in the record, whatever else of it is sent; without filters all is."""
    hook = Webhook(name="a", url="https://h/", secret_file="k")
    events = (registered("web"), registered("db"), stopped("web"))
    assert selected(hook, *events) == ["c1/7/0", "c1/7/1", "c1/7/2"]
    by_kind = msgspec.structs.replace(hook, kinds=("job.stopped", "node."))
    assert selected(by_kind, *events) == ["c1/7/2"]
    by_job = msgspec.structs.replace(hook, jobs=("web",))
    assert selected(by_job, *events) == ["c1/7/0", "c1/7/2"]
    both = msgspec.structs.replace(hook, kinds=("job.reg",), jobs=("db",))
    assert selected(both, *events) == ["c1/7/1"]
    assert selected(hook) == []


def test_an_event_is_a_cloud_event_without_the_text_of_the_job() -> None:
    """The attributes of CloudEvents 1.0; what a job holds of secrets stays in the log."""
    record = LogRecord(
        kind="tx", schema=1, core="c", epoch=1, prev="", t_ns=1_700_000_000_000_000_001,
        events=(registered("web"),),
    )  # fmt: skip
    hook = Webhook(name="a", url="https://h/", secret_file="k")
    (one,) = EventSelector(hook, "c1").events(State(), record, 7)
    body = cloud_event(one)
    assert b"marker-7f3a" not in body
    assert b"\n" not in body
    found = json.loads(body)
    assert found["specversion"] == "1.0"
    assert (found["id"], found["source"]) == ("c1/7/0", "/caravan/c1")
    assert (found["type"], found["subject"]) == ("caravan.job.registered", "web")
    assert found["time"] == "2023-11-14T22:13:20.000000001Z"
    assert found["datacontenttype"] == "application/json"
    assert found["sequence"] == "00000000000000000007"
    assert found["data"]["seq"] == 7
    assert found["data"]["jobs"] == ["web"]
    assert found["data"]["event"]["type"] == "job.registered"
    assert found["data"]["event"]["job_id"] == "web"


def test_an_event_that_is_too_large_is_sent_without_its_fields() -> None:
    """A bound on each request, whatever a record holds."""
    large = JobRegistered(
        submission_id="s", digest="d", job_id=JobId("web"), version=0,
        warnings=("x" * EVENT_BYTES_MAX,),
    )  # fmt: skip
    assert bytes(event_json(large)) == b"null"


# ---- repetitions ----


def test_pauses_double_from_a_second_to_five_minutes() -> None:
    """1, 2, 4, … 256, 300, 300: also after very many failures."""
    pauses = [delivery.pause_ns(n) // SECOND for n in range(1, 12)]
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert delivery.pause_ns(10**9) == 300 * SECOND


def test_a_failure_is_repeated_and_a_success_forgets_it() -> None:
    """No failure moves the position; anything but 2xx is a failure, a redirect too."""
    state = delivery.begin("c1", 5)
    for n, status in enumerate((0, 301, 302, 400, 401, 429, 500, 503), start=1):
        state = delivery.after(state, Attempt(status=status), 1000)
        assert (state.failures, state.seq, state.disabled) == (n, 5, "")
        assert state.next_try_ns == 1000 + delivery.pause_ns(n)
    state = delivery.after(state, Attempt(status=204), 2000)
    assert (state.failures, state.failed, state.delivered, state.error) == (0, 8, 1, "")
    state = delivery.position(state, 5, 3)
    assert delivery.position(state, 6) == msgspec.structs.replace(state, seq=6, ordinal=0)
    with pytest.raises(AssertionError):
        delivery.position(state, 4)


@pytest.mark.parametrize("status", [404, 410])
def test_a_target_that_is_gone_for_a_day_is_disabled(status: int) -> None:
    """Not a moment before, and not where it answered anything else meanwhile."""
    day = delivery.GONE_NS
    state = delivery.after(delivery.begin("c1", 5), Attempt(status=status), 1000)
    state = delivery.after(state, Attempt(status=status), 999 + day)
    assert state.disabled == ""
    assert delivery.after(state, Attempt(status=status), 1000 + day).disabled != ""
    mended = delivery.after(state, Attempt(status=500), 999 + day)
    assert delivery.after(mended, Attempt(status=status), 1000 + day).disabled == ""


def test_a_position_survives_a_start_unless_it_means_nothing() -> None:
    """Of another log it is not used; behind the end of a log that was restored it goes back to that end."""
    kept = SentPosition(cluster_id="c1", seq=7, ordinal=2, failures=3, next_try_ns=9, disabled="x")
    found = delivery.resumed(kept, cluster_id="c1", last_seq=9, from_seq=0)
    assert (found.seq, found.ordinal, found.failures) == (7, 2, 3)
    assert (found.next_try_ns, found.disabled, found.gone_since_ns) == (0, "", 0)
    back = delivery.resumed(kept, cluster_id="c1", last_seq=4, from_seq=0)
    assert (back.seq, back.ordinal) == (4, 0)
    for old in (None, msgspec.structs.replace(kept, cluster_id="c2")):
        assert delivery.resumed(old, cluster_id="c1", last_seq=9, from_seq=0).seq == 9
        assert delivery.resumed(old, cluster_id="c1", last_seq=9, from_seq=1).seq == 0


@given(st.lists(st.sampled_from([0, 200, 204, 301, 404, 410, 500]), max_size=60))
def test_the_state_machine_keeps_its_rules(statuses: list[int]) -> None:
    """Whatever a target answers, counts add up, pauses stay within their bounds, and nothing is lost."""
    state, now_ns = delivery.begin("c1", 5), 0
    for status in statuses:
        old, state = state, delivery.after(state, Attempt(status=status), now_ns)
        assert state.delivered + state.failed == old.delivered + old.failed + 1
        assert (state.seq, state.ordinal) == (5, 0)
        pause_ns = max(state.next_try_ns - now_ns, 0)
        assert 0 <= pause_ns <= delivery.PAUSE_MAX_NS
        assert (pause_ns == 0) is (200 <= status < 300)
        assert bool(state.gone_since_ns or now_ns == 0) or status not in (404, 410)
        now_ns += max(pause_ns, SECOND)


# ---- signatures ----


def test_a_signature_is_that_of_standard_webhooks() -> None:
    """HMAC-SHA-256 over id, time and body, in base64 behind the version; a key may be given in base64."""
    key = b"0123456789abcdef0123"
    headers = signed_headers(key, "c1/7/0", b'{"a":1}', 1_700_000_000)
    told = hmac.new(key, b'c1/7/0.1700000000.{"a":1}', hashlib.sha256).digest()
    assert headers == {
        "webhook-id": "c1/7/0",
        "webhook-timestamp": "1700000000",
        "webhook-signature": "v1," + base64.b64encode(told).decode(),
    }
    assert key_of(key + b"\n", "key") == key
    assert key_of(b"whsec_" + base64.b64encode(key) + b"\n", "key") == key
    for wrong in (b"", b"short", b"whsec_%%%", b"whsec_" + base64.b64encode(b"short")):
        with pytest.raises(ConfigInvalid, match=r"^key: "):
            key_of(wrong, "key")


# ---- Grafana ----


def test_an_annotation_is_found_again_by_its_event() -> None:
    """Its tags hold the event's id; the search asks for exactly that tag below the path of the address."""
    record = LogRecord(
        kind="tx", schema=1, core="c", epoch=1, prev="", t_ns=1_700_000_000_123_456_789,
        events=(registered("web"),),
    )  # fmt: skip
    hook = Webhook(name="a", url="https://h/", secret_file="k")
    (one,) = EventSelector(hook, "c1").events(State(), record, 7)
    body = json.loads(grafana.annotation(one, ("caravan", "prod")))
    assert body["time"] == 1_700_000_000_123
    assert body["tags"] == ["caravan", "prod", "job.registered", "job:web", "caravan:c1/7/0"]
    assert body["text"]
    assert grafana.search_path("/grafana/", one) == (
        "/grafana/api/annotations?tags=caravan%3Ac1%2F7%2F0&limit=1"
    )
    assert grafana.has_annotation(b'[{"id":4,"text":"x"}]')
    for none in (b"[]", b"{}", b"", b"\xff"):
        assert not grafana.has_annotation(none)


def test_a_variable_is_sent_without_ciphertext_and_digest() -> None:
    """Path, life, count and size leave the cluster, as in the log's own line; other events keep their digest."""
    sent = msgspec.json.decode(event_json(put("app/db")))
    assert sent.keys() == {
        *("type", "path", "incarnation", "items", "size", "at_ns", "request_id"),
    }
    stopped = JobStopped(submission_id="s", digest="d", job_id=JobId("j"), purge=False)
    assert msgspec.json.decode(event_json(stopped))["digest"] == "d"
