"""Bad input end to end: through the asked door and the drop box, and on every other subject."""

import asyncio
import json
from typing import Any

import pytest

from bench.harness.cluster import BenchCluster, wait_until
from schemas.envelope import ENCODER, CommandBatch
from schemas.nodes import NodeSpec, ReportNode
from schemas.plans import PlanCommitted
from shared.bus.connection.nats_client import header_block
from shared.bus.jetstream.sender_proof import mark_of
from shared.core.runtime.chain import Chain, decode_record
from shared.protocol import subjects
from shared.protocol.operator_verbs import VERBS
from tests.bounds import LONG_S
from tests.faults.city import City, body_of, play, watched


def job(**changes: Any) -> dict[str, Any]:
    """A good submission with some of its job changed."""
    body: dict[str, Any] = json.loads(body_of("bad"))
    body["Job"] |= changes
    del body["SubmissionID"]
    return body


def group(**changes: Any) -> bytes:
    """A good submission with some of its group changed."""
    body = job()
    body["Job"]["TaskGroups"][0] |= changes
    return json.dumps(body).encode()


def named(job_id: str) -> bytes:
    """A good submission under another job id."""
    return json.dumps(job(ID=job_id, Name="n")).encode()


ODD = subjects.report("odd")
GOOD = json.dumps(job()).encode()
BAD = {
    "nothing": b"",
    "no object": b"[1]",
    "cut short": GOOD[:-1],
    "twice a key": GOOD[:-1] + b',"Job":{"ID":"other"}}',
    "twice a key within": GOOD.replace(b'"Name"', b'"ID": "again", "Name"', 1),
    "not a number": GOOD.replace(b'"CPU": 20', b'"CPU": NaN'),
    "infinite": GOOD.replace(b'"CPU": 20', b'"CPU": Infinity'),
    "2 to the 63rd": group(Count=2**63),
    "no UTF-8": GOOD.replace(b'"bad"', b'"b\xff\xfed"', 1),
    "half a surrogate": GOOD.replace(b'"bad"', b'"b\\ud800d"', 1),
    "a thousand levels": GOOD[:-1] + b',"X":' + b"[" * 1000 + b"]" * 1000 + b"}",
    "a mebibyte": json.dumps(job(Meta={"text": "x" * (1_000_000)})).encode(),
    "a billion": group(Count=1_000_000_000),
    "less than none": group(Count=-1),
    "a fraction": group(Count=1.5),
    "no job": b'{"SubmissionID":"x"}',
    "wildcard *": named("a*b"),
    "wildcard >": named("a.>"),
    "space": named("a b"),
    "control character": named("a\x07b"),
    "line break": named("a\r\nPUB x 1"),
    "climbing": named("a/../b"),
    "climbing up front": named("../etc/passwd"),
    "empty id": named(""),
    "long id": named("x" * 4000),
}
LEGAL = ("team.web/api-v1.2", "a/b/c", "ünïcode", "..dots..", "UPPER.lower", "~tilde", "$sys.x")


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_the_asked_door_refuses_in_words(cluster: BenchCluster, body: bytes) -> None:
    """What is no submission is refused at once with a code and a sentence, and leaves no fact."""

    async def story() -> None:
        async with watched(cluster) as city:
            jobs = set(city.observer.state.jobs.by_id)
            verdict = await city.ask(body, timeout_s=LONG_S)
            assert verdict is not None and verdict.status == "refused" and verdict.error is not None
            assert verdict.error.code in {"invalid", "too_large", "unsupported"}, verdict.error
            assert verdict.error.message and len(verdict.error.message) < 1000
            assert set(city.observer.state.jobs.by_id) == jobs

    play(story())


def test_the_drop_box_puts_bad_messages_aside(cluster: BenchCluster) -> None:
    """Each bad message of the drop box is a dead letter, the position moves on, and the good one behind is placed."""

    async def story() -> None:
        async with watched(cluster) as city:
            before = await city.count_buried(subjects.jobs("submit"))
            for number, body in enumerate(BAD.values()):
                headers = header_block(nats_msg_id=f"bad-{number}")
                city.public.bus.send(subjects.jobs("submit"), body, headers=headers)
            city.public.publish(subjects.jobs("nonsense"), b"{}")
            kept = await city.public.request(
                subjects.jobs("submit"), json.loads(body_of("behind-the-bad"))
            )
            assert kept["stream"] == "JOBS"
            await wait_until(lambda: city.held("behind-the-bad") == 1, "the good one", LONG_S)
            assert city.observer.state.jobs.jobs_seq >= kept["seq"]
            await city.buried(subjects.jobs("submit"), before + len(BAD))
            await city.buried(subjects.jobs("nonsense"), 1)
            await city.told_of(subjects.jobs("submit"), "a . or .. segment")
            await city.proven()

    play(story())


def test_legal_ids_work_everywhere(cluster: BenchCluster) -> None:
    """Dots, slashes and letters of any script are legal: submit, place, ask, project, stop."""

    async def story() -> None:
        async with watched(cluster) as city:
            for job_id in LEGAL:
                verdict = await city.submit(body_of(job_id, submission=f"s/{job_id}"))
                assert verdict.status == "accepted" and verdict.job_id == job_id, verdict
            await wait_until(lambda: all(city.held(one) == 1 for one in LEGAL), "placed", LONG_S)
            for job_id in LEGAL:
                answer = await city.public.request(subjects.query("job"), {"id": job_id})
                assert answer["job"]["id"] == job_id
                projected = city.public.follow(subjects.view_job(job_id))
                async with asyncio.timeout(LONG_S):
                    assert (await anext(projected))[0] == subjects.view_job(job_id)
                await projected.aclose()  # type: ignore[attr-defined]
                stop = json.dumps({"JobID": job_id}).encode()
                assert (await city.submit(stop, "stop")).status == "accepted"
            await wait_until(lambda: all(city.held(one) == 0 for one in LEGAL), "stopped", LONG_S)
            await city.proven()

    play(story())


def test_a_submission_id_means_one_content(cluster: BenchCluster) -> None:
    """The same id and content again gets the first verdict; other content under it is a conflict, at both doors."""

    async def story() -> None:
        async with watched(cluster) as city:
            first = await city.submit(body_of("reused", submission="one-id"))
            again = await city.submit(body_of("reused", submission="one-id"))
            other = await city.submit(body_of("other", submission="one-id"))
            assert first.status == "accepted" and (again.version, again.seq) == (
                first.version,
                first.seq,
            )
            assert other.status == "refused" and other.error is not None
            assert other.error.code == "conflict"
            kept = await city.public.request(
                subjects.jobs("submit"), json.loads(body_of("third", submission="one-id"))
            )
            await city.lives("behind-the-reused")
            assert not {"other", "third"} & set(city.observer.state.jobs.by_id)
            place = f"jobs-{kept['seq']}"
            for name in ("one-id", place):
                values = city.public.follow(subjects.view_submission(name))
                async with asyncio.timeout(LONG_S):
                    # The view may still have to publish what came before.
                    while (value := json.loads((await anext(values))[1]))["job_id"] != "third":
                        pass
                await values.aclose()  # type: ignore[attr-defined]
                answer = await city.public.request(subjects.query("submission"), {"id": name})
                for verdict in (value, answer["verdict"]):
                    assert verdict["submission_id"] == name and verdict["job_id"] == "third"
                    assert verdict["status"] == "refused"
                    assert verdict["error"]["code"] == "conflict", verdict
            same = await city.submit(body_of("reused", submission="one-id"))
            assert (same.status, same.seq) == ("accepted", first.seq)

    play(story())


def test_check_and_set_is_checked(cluster: BenchCluster) -> None:
    """An index from the future, or from the past, is refused as conflict; the right one is taken."""

    async def story() -> None:
        async with watched(cluster) as city:
            first = await city.submit(body_of("cas"))
            for at, index in enumerate((first.modify_index + 10_000, 0, first.modify_index - 1)):
                body = body_of(
                    "cas", count=2, submission=f"cas-{at}", EnforceIndex=True, JobModifyIndex=index
                )
                verdict = await city.submit(body)
                assert verdict.status == "refused" and verdict.error is not None, index
                assert verdict.error.code == "conflict"
            index = first.modify_index
            body = body_of(
                "cas", count=2, submission="cas-ok", EnforceIndex=True, JobModifyIndex=index
            )
            assert (await city.submit(body)).version == first.version + 1
            await wait_until(lambda: city.held("cas") == 2, "the second version", LONG_S)

    play(story())


def test_two_submits_of_one_job_at_once(cluster: BenchCluster) -> None:
    """Two versions of one job in one batch are two versions, and the second one's count is what is placed."""

    async def story() -> None:
        async with watched(cluster) as city:
            bodies = [body_of("twice", count=n, submission=f"twice-{n}") for n in (1, 2, 3)]
            verdicts = await asyncio.gather(*(city.submit(body) for body in bodies))
            assert sorted(one.version for one in verdicts) == [0, 1, 2]
            last = max(range(3), key=lambda at: verdicts[at].version) + 1
            await wait_until(lambda: city.held("twice") == last, "the last version's count", LONG_S)
            await city.proven()

    play(story())


def test_a_stop_while_it_is_planned(cluster: BenchCluster) -> None:
    """A stop that comes while the job's evaluation is leased leaves nothing running, however the two meet."""

    async def story() -> None:
        async with watched(cluster) as city:
            names = [f"stopped-{number}" for number in range(40)]

            async def start_and_stop(name: str) -> None:
                started = asyncio.create_task(city.submit(body_of(name, count=3)))
                await asyncio.sleep(0)
                stop = json.dumps({"JobID": name, "SubmissionID": f"stop-{name}"}).encode()
                assert (await started).status == "accepted"
                assert (await city.submit(stop, "stop")).status == "accepted"

            await asyncio.gather(*(start_and_stop(name) for name in names))
            evaluations = city.observer.state.evaluations
            await wait_until(
                lambda: not any(evaluations.open_of.get(name) for name in names),  # type: ignore[call-overload]
                "all is decided",
                LONG_S,
            )
            assert [city.held(name) for name in names] == [0] * len(names)
            await city.proven()

    play(story())


def _registration(host: str, **sizes: int) -> bytes:
    """A report that registers the node `odd` from a host."""
    spec = NodeSpec(node_id="odd", **{"cpu_mhz": 1, "memory_mib": 1, "disk_mib": 1, **sizes})
    report = ReportNode(node_id="odd", host_id=host, boot_id=f"boot-{host}", number=1, spec=spec)
    return ENCODER.encode(CommandBatch(sender=host, commands=(report,)))


def test_odd_nodes_are_refused(cluster: BenchCluster) -> None:
    """No cpu, 2^40 MiB, or an id that is up on another host: refused as a fact with the reason, the fleet unchanged."""

    async def story() -> None:
        async with watched(cluster) as city, cluster.connection() as admin:
            fleet = city.observer.state.fleet

            def is_refused(code: str, reason: str) -> bool:
                found = fleet.refused.get("odd")
                return found is not None and found.code == code and reason in found.reason

            for sizes, reason in (({"cpu_mhz": 0}, "cpu is 0"), ({"memory_mib": 2**40}, "memory")):
                admin.send(ODD, _registration("one", **sizes), headers=mark_of(ODD))
                await wait_until(lambda r=reason: is_refused("invalid", r), reason, LONG_S)
            assert "odd" not in fleet.row_of
            admin.send(ODD, _registration("one"), headers=mark_of(ODD))
            await wait_until(lambda: "odd" in fleet.row_of, "the good one is registered", LONG_S)
            admin.send(ODD, _registration("two"), headers=mark_of(ODD))
            await wait_until(lambda: is_refused("conflict", "another host"), "a conflict", LONG_S)
            assert fleet.host_ids[fleet.row_of["odd"]] == "one"
            await city.lives("after-odd-nodes")

    play(story())


GARBAGE = b'\xff{"commands":['


def test_garbage_on_every_subject(cluster: BenchCluster) -> None:
    """What cannot be read on any subject is a dead letter or an error to who asked; the services continue."""

    async def story() -> None:
        async with watched(cluster) as city:
            workers = await _workers(city)
            kinds = [kind for kind in subjects.COMMAND_KINDS if kind != "report"]
            buried = [subjects.command(kind) for kind in kinds]
            buried += [subjects.report("n00001"), subjects.heartbeat("n00001")]
            buried += [subjects.leases(worker) for worker in workers]
            buried += [subjects.presence("scheduler", "nobody"), subjects.jobs("submit")]
            before = {one: await city.count_buried(one) for one in buried}
            foreign = city.observer.replica.chain.foreign
            async with cluster.connection() as admin:
                for subject in buried:
                    admin.send(subject, GARBAGE)
                # No role answers these: an invalid fact, values, and an invalid dead letter.
                for subject in (
                    subjects.log(1, "tx"),
                    subjects.node("n00001"),
                    subjects.view_job("first"),
                    subjects.dead(subjects.command("plan")),
                ):
                    admin.send(subject, GARBAGE)
                await admin.flush()
            for noun in subjects.QUERY_NOUNS:
                answer = await city.public.request_bytes(subjects.query(noun), GARBAGE)
                assert b'"error"' in answer, noun
            asked = [subjects.api_jobs(verb) for verb in subjects.API_JOB_VERBS]
            asked += [subjects.api(row.noun, row.verb) for row in VERBS]
            for subject in asked:
                assert b'"error"' in await city.public.request_bytes(subject, GARBAGE), subject
            await city.lives("after-garbage")
            for subject in buried:
                await city.buried(subject, before[subject] + 1)
            assert city.observer.replica.chain.foreign == foreign + 1
            await city.proven()

    play(story())


async def _workers(city: City) -> set[str]:
    """Workers whose plans stand in the newest part of the log."""
    chain = city.observer.replica.chain
    found: set[str] = set()
    assert isinstance(chain, Chain)
    await city.lives(f"to-see-a-worker-{chain.next_seq}")
    async for record in city.public.read_log(max(1, chain.next_seq - 20)):
        decoded = decode_record(record.seq, record.subject, record.data)
        for event in decoded.events if decoded is not None else ():
            if isinstance(event, PlanCommitted):
                found.add(event.origin.worker)
    return found
