"""Spans of a log: ids that follow from it, complete chains, and OTLP/JSON as a collector reads it."""

import json
from collections import Counter
from pathlib import Path

import pytest

from schemas.base import EvalKey, JobId
from schemas.envelope import LogRecord
from schemas.jobs import JobRegistered
from shared.protocol.trace_context import parent_span
from shared.query.historical_state import HistoricalState
from shared.query.otlp_json import SPANS_MAX, export_requests
from shared.query.spans import JobSample, RecordSpans, Span, SpanEvent, SpanSource
from tests.golden.replay_log import read_log
from tests.unit.core.state.written_log import WrittenLog

LOGS = Path(__file__).resolve().parents[2] / "golden" / "logs"
RECORDS = read_log(LOGS / "v1-0.1.0-seed-2.jsonl.gz")


def spans_of(share: float = 1.0, cluster_id: str = "c1") -> list[Span]:
    """Replay the golden log and make its spans."""
    past, made = HistoricalState(), RecordSpans(cluster_id, JobSample(share))
    times: dict[int, int] = {}
    found: list[Span] = []
    for record in RECORDS:

        def before(decoded: LogRecord) -> None:
            made.before(past.state, decoded)

        decoded = past.apply_with(record, before)
        if decoded is not None:
            times[record.seq] = decoded.t_ns
            source = SpanSource(past.state, past.histories, lambda seq: times.get(seq, 0))
            found += made.after(source, decoded, record.seq)
    return found


SPANS = spans_of()


def test_a_log_always_makes_the_same_spans() -> None:
    """A second export is equal, each id names one span, and another cluster has other ids."""
    assert spans_of() == SPANS
    ids = [(one.trace_id, one.span_id) for one in SPANS]
    assert len(set(ids)) == len(ids) > 100
    assert all(len(trace) == 32 and len(span) == 16 for trace, span in ids)
    assert all(set(trace) != {"0"} and set(span) != {"0"} for trace, span in ids)
    assert not {one.span_id for one in spans_of(cluster_id="c2")} & {one.span_id for one in SPANS}


def test_every_kind_of_span_is_there_and_none_ends_before_it_begins() -> None:
    """Submissions, evaluations, plans and allocations; times of log time, allocations end when they run."""
    kinds = Counter(one.name for one in SPANS)
    assert {"job.registered", "evaluation", "plan", "allocation", "allocation end"} <= set(kinds)
    assert all(0 < one.start_ns <= one.end_ns for one in SPANS)
    placed = [one for one in SPANS if one.name == "allocation"]
    assert any(one.attributes["caravan.status"] == "running" for one in placed)
    assert any(one.start_ns < one.end_ns for one in placed)
    assert all(one.attributes["caravan.node"] for one in placed)
    assert all(bool(one.error) is (one.attributes["caravan.status"] in ("failed", "lost"))
               for one in placed)  # fmt: skip


def test_an_allocation_hangs_on_the_submission_that_caused_it() -> None:
    """From an allocation that runs, parents lead over its evaluation to a submission of the same job and trace."""
    by_id = {one.span_id: one for one in SPANS}
    complete = 0
    for one in SPANS:
        if one.name != "allocation" or one.parent_id not in by_id:
            continue
        evaluation = by_id[one.parent_id]
        assert evaluation.name == "evaluation"
        root = by_id.get(evaluation.parent_id)
        for parent in (evaluation, root):
            if parent is not None:
                assert parent.trace_id == one.trace_id
                assert parent.attributes["caravan.job"] == one.attributes["caravan.job"]
        complete += root is not None and root.name.startswith("job.")
    assert complete > 10
    ends = [one for one in SPANS if one.name == "allocation end"]
    assert all(one.links[0][1] in by_id for one in ends)


def test_a_sample_has_all_spans_of_a_job_or_none() -> None:
    """A share takes whole jobs, the larger share those of the smaller; none is 0, all is 1."""
    everything = Counter(str(one.attributes["caravan.job"]) for one in SPANS)
    half = Counter(str(one.attributes["caravan.job"]) for one in spans_of(0.5))
    assert set() < set(half) < set(everything)
    assert all(everything[job] == count for job, count in half.items())
    assert {job for job in everything if JobSample(0.2).has(job)} <= set(half)
    assert not JobSample(0.0).has("web")
    assert JobSample(1.0).has("web")


def test_spans_are_written_as_otlp_json() -> None:
    """Ids are hex, times and integers are text, a failure is status 2, a request holds a bounded number."""
    span = Span(
        trace_id="a" * 32, span_id="b" * 16, parent_id="c" * 16, name="plan", start_ns=1, end_ns=2,
        attributes={"caravan.seq": 7, "caravan.job": "wéb"}, error="stale: job changed",
        events=(SpanEvent(t_ns=2, name="cut"),), links=(("d" * 32, "e" * 16),),
    )  # fmt: skip
    lines = list(export_requests([span] * (SPANS_MAX + 1), "c1"))
    assert len(lines) == 2
    assert all(b"\n" not in line for line in lines)
    body = json.loads(lines[0])["resourceSpans"][0]
    resource = {one["key"]: one["value"] for one in body["resource"]["attributes"]}
    assert resource["service.name"] == {"stringValue": "caravan"}
    assert resource["caravan.cluster"] == {"stringValue": "c1"}
    assert len(body["scopeSpans"][0]["spans"]) == SPANS_MAX
    assert body["scopeSpans"][0]["spans"][0] == {
        "traceId": "a" * 32,
        "spanId": "b" * 16,
        "parentSpanId": "c" * 16,
        "name": "plan",
        "kind": 1,
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "2",
        "attributes": [
            {"key": "caravan.seq", "value": {"intValue": "7"}},
            {"key": "caravan.job", "value": {"stringValue": "wéb"}},
        ],
        "events": [{"timeUnixNano": "2", "name": "cut", "attributes": []}],
        "links": [{"traceId": "d" * 32, "spanId": "e" * 16}],
        "status": {"code": 2, "message": "stale: job changed"},
    }
    assert list(export_requests([], "c1")) == []


def test_a_replay_from_the_middle_makes_the_same_ids() -> None:
    """What is exported after a start at a snapshot has the ids of an export of the whole log."""
    whole = {(one.trace_id, one.span_id) for one in SPANS}
    middle = RECORDS[len(RECORDS) // 2].seq
    past, made = HistoricalState(), RecordSpans("c1", JobSample())
    found: list[Span] = []
    for record in RECORDS:
        decoded = past.apply_with(record, lambda one: made.before(past.state, one))
        if decoded is not None and record.seq > middle:
            # Log times before the start are not known.
            source = SpanSource(past.state, past.histories, lambda _: 0)
            found += made.after(source, decoded, record.seq)
    assert found
    assert {(one.trace_id, one.span_id) for one in found} <= whole


def test_a_submission_hangs_on_the_span_that_sent_it() -> None:
    """In the trace of its sender it is a child of the named span, and links to its own trace, whose root it is."""
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    log = WrittenLog()
    log.jobs("plain")
    event = registered(log, "traced", parent)
    past, made = HistoricalState(), RecordSpans("c1", JobSample())
    found: list[Span] = []
    for record in log.records:
        decoded = past.apply(record)
        if decoded is not None:
            source = SpanSource(past.state, past.histories, lambda _: 1)
            found += made.after(source, decoded, record.seq)
    mine = [one for one in found if one.attributes["caravan.job"] == "traced"]
    own, theirs = (next(one for one in mine if one.name == name)
                   for name in ("job.registered", "caravan submission"))  # fmt: skip
    assert (theirs.trace_id, theirs.parent_id) == ("a" * 32, "b" * 16)
    assert theirs.links == ((own.trace_id, own.span_id),)
    assert (own.parent_id, own.trace_id != theirs.trace_id) == ("", True)
    assert [one.trace_id for one in found].count("a" * 32) == 1
    assert event.traceparent == parent


def registered(log: WrittenLog, job_id: str, traceparent: str) -> JobRegistered:
    """Write what registers a job for the span of a sender."""
    event = JobRegistered(
        submission_id=job_id,
        digest="d",
        job_id=JobId(job_id),
        version=0,
        evaluation=EvalKey(log.seq * 4096 + 4096),
        traceparent=traceparent,
    )
    log.tx(event)
    return event


@pytest.mark.parametrize(
    ("text", "parent"),
    [
        (f"00-{'a' * 32}-{'b' * 16}-01", ("a" * 32, "b" * 16)),
        (f"cc-{'a' * 32}-{'b' * 16}-00", ("a" * 32, "b" * 16)),
        (f"ff-{'a' * 32}-{'b' * 16}-01", None),
        (f"00-{'0' * 32}-{'b' * 16}-01", None),
        (f"00-{'a' * 32}-{'0' * 16}-01", None),
        (f"00-{'A' * 32}-{'b' * 16}-01", None),
        (f"00-{'a' * 32}-{'b' * 16}-01\n", None),
        ("", None),
    ],
)
def test_what_is_no_span_of_trace_context_is_none(
    text: str, parent: tuple[str, str] | None
) -> None:
    """Only what the specification permits names a parent: ids that are not zero, in lower case, with a version."""
    assert parent_span(text) == parent
