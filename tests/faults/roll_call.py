"""After an attack: the same processes as before, each of which answers, and a fresh job is placed."""

import json
import urllib.request

from bench.harness.cluster import BenchCluster
from shared.protocol import subjects
from tests.bounds import WAIT_S
from tests.faults.city import City


def failed_messages(cluster: BenchCluster) -> dict[str, float]:
    """Failed messages that every process counts; a process that does not answer raises."""
    found = {}
    for path in sorted((cluster.data_dir / "logs").glob("*.port")):
        with urllib.request.urlopen(
            f"http://127.0.0.1:{int(path.read_text())}/metrics", timeout=WAIT_S
        ) as answer:
            lines = answer.read().decode().splitlines()
        counts = [line for line in lines if line.startswith("caravan_shell_messages_failed_total")]
        found[path.stem] = sum(float(line.rpartition(" ")[2]) for line in counts)
    return found


async def every_role_answers(city: City, pids: dict[str, int], name: str) -> None:
    """No process was restarted, a job is placed, and every question and every door is answered."""
    await city.lives(name)
    assert city.cluster.pids() == pids, city.cluster.notes[-20:]
    for noun in subjects.QUERY_NOUNS:
        assert json.loads(await city.answer(subjects.query(noun), b'{"id":"none"}'))
    for verb in subjects.API_JOB_VERBS:
        assert json.loads(await city.answer(subjects.api_jobs(verb), b"{}"))
