"""A Caravan client in Python: nats-py and nothing else. CARAVAN_NATS_URL names the bus, user and password inside.

Submits a job, follows it until it runs, stops it, follows it until it is over, and reads what the log says of
that time.
"""

import asyncio
import hashlib
import json
import os
import string
import sys
import uuid
from collections.abc import Callable
from urllib.parse import urlsplit

import nats
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import NoRespondersError

SERVERS = os.environ["CARAVAN_NATS_URL"].split(",")
PLAIN = (string.ascii_letters + string.digits + "-_").encode()
TASK = {
    "Name": "sleep",
    "Driver": "raw_exec",
    "Config": {"command": "/bin/sleep", "args": ["3600"]},
    "Resources": {"CPU": 20, "MemoryMB": 16},
}
JOB = {
    "ID": "café/menu.python",
    "Update": {"MinHealthyTime": 1_000_000_000},
    "TaskGroups": [{"Name": "kitchen", "Count": 2, "Tasks": [TASK]}],
}


def token(identifier: str) -> str:
    """Spell an id as one token of a subject."""
    return "".join(chr(b) if b in PLAIN else f"~{b:02X}" for b in identifier.encode())


async def waiting(error: Exception) -> None:
    """Say why there is no connection; the client tries again."""
    print(f"waiting for the bus: {error}", file=sys.stderr, flush=True)


async def submit(nc: Client, verb: str, body: dict) -> dict:
    """Ask for a verdict, again under the same id while there is none."""
    body = {**body, "SubmissionID": f"python-{uuid.uuid4()}"}
    for _ in range(10):
        try:
            reply = await nc.request(f"api.jobs.{verb}", json.dumps(body).encode(), timeout=6)
        except (NoRespondersError, TimeoutError):
            await asyncio.sleep(0.5)
            continue
        verdict = json.loads(reply.data)
        if verdict["status"] == "accepted":
            return verdict
        if verdict["status"] == "refused" and verdict["error"]["code"] != "unavailable":
            sys.exit(f"refused: {verdict['error']['message']}")
    sys.exit("no verdict")


async def follow(
    nc: Client, updates: Subscription, job_id: str, seq: int, is_reached: Callable[[dict], bool]
) -> int:
    """Wait until the job's numbers, not older than `seq`, are as wanted; return the seq they show."""
    last_value = f"$JS.API.DIRECT.GET.VIEW.view.job.{token(job_id)}"
    message = await nc.request(last_value, b"", timeout=5)
    while True:
        # An empty body: nothing is published under this subject yet.
        job = json.loads(message.data) if message.data else {"seq": 0}
        if job["seq"] >= seq and is_reached(job):
            return job["seq"]
        try:
            message = await updates.next_msg(timeout=5)
        except TimeoutError:
            message = await nc.request(last_value, b"", timeout=5)


def is_running(job: dict) -> bool:
    """All of its newest version runs. Ends the program when it failed."""
    rollout = job["rollout"]
    if rollout["status"] == "failed":
        sys.exit(f"failed: {rollout['reason']}")
    return rollout["status"] == "running"


def is_over(job: dict) -> bool:
    """Nothing of it runs or will run."""
    return job["rollout"]["status"] in {"stopped", "complete"}


async def read_log(nc: Client, first: int, last: int) -> list[dict]:
    """Read records by one batched direct get, and check their checksums and their chain."""
    inbox = nc.new_inbox()
    answers = await nc.subscribe(inbox)
    request = json.dumps({"seq": first, "batch": last - first + 1}).encode()
    await nc.publish("$JS.API.DIRECT.GET.LOG_1", request, reply=inbox)
    records: list[dict] = []
    while True:
        message = await answers.next_msg(timeout=5)
        headers = message.headers or {}
        if "Status" in headers:
            # 204 ends the batch.
            break
        record, data = json.loads(message.data), message.data
        assert hashlib.blake2b(data[:-42], digest_size=16).hexdigest() == record["sum"]
        assert not records or record["prev"] == records[-1]["sum"]
        seq = int(headers["Nats-Sequence"])
        records.append({"seq": seq, "kind": record["kind"], "sum": record["sum"]})
    await answers.unsubscribe()
    return records


async def main() -> None:
    """Live through a job's life."""
    # A user may listen behind its own name only.
    prefix = f"_INBOX.{urlsplit(SERVERS[0]).username}"
    # The first connect is tried as often as a later one, every two seconds.
    nc = await nats.connect(
        SERVERS, inbox_prefix=prefix, error_cb=waiting, max_reconnect_attempts=-1
    )
    job_id = str(JOB["ID"])
    updates = await nc.subscribe(f"view.job.{token(job_id)}")
    verdict = await submit(nc, "submit", {"Job": JOB})
    running = await follow(nc, updates, job_id, verdict["seq"], is_running)
    stop = await submit(nc, "stop", {"JobID": job_id})
    stopped = await follow(nc, updates, job_id, stop["seq"], is_over)
    records = await read_log(nc, verdict["seq"], stopped)
    said = {"submitted": verdict["seq"], "running": running, "stopped": stopped, "records": records}
    print(json.dumps(said))
    await nc.close()


asyncio.run(main())
