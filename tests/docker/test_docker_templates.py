"""Templates of a container: the file is at the container's own path, with its mode and owner, before it starts."""

from pathlib import Path

import pytest

from shared.core.state.ids import alloc_id
from tests.bounds import level
from tests.docker.engine import OwnEngine
from tests.docker.test_docker_agent import a_node, box_task
from tests.integration.agent_node import job, projection

pytestmark = pytest.mark.asyncio

OWN = {
    "EmbeddedTmpl": 'of {{ env "OWN" }} in {{ env "NOMAD_TASK_DIR" }} {{ env "NOMAD_ALLOC_INDEX" }}\n',
    "DestPath": "${NOMAD_TASK_DIR}/conf/own",
    "Perms": "0400",
    "Uid": 1000,
    "Gid": 1001,
}
OTHERS = {"EmbeddedTmpl": "not for you\n", "DestPath": "local/others", "Perms": "0600", "Uid": 1002}
SHARED = {"EmbeddedTmpl": "shared\n", "DestPath": "${NOMAD_ALLOC_DIR}/data/shared"}
ENV = {
    "EmbeddedTmpl": 'GREETING=from {{ env "NOMAD_ALLOC_DIR" }}\n',
    "DestPath": "secrets/env",
    "Envvars": True,
}
SCRIPT = (
    'stat -c "%a %u %g" /local/conf/own; cat $NOMAD_TASK_DIR/conf/own; cat /alloc/data/shared; '
    'echo "$GREETING"; cat /local/others 2>/dev/null || echo refused; sleep 300'
)
OUTPUT = "400 1000 1001\nof app in /local 1\nshared\nfrom /alloc\nrefused\n"


async def test_a_container_reads_what_was_rendered_for_its_user(
    engine: OwnEngine, top: Path
) -> None:
    """Perms and owner of the block hold in the container, and another agent does not render it again."""
    task = box_task(SCRIPT)
    task |= {"User": "1000:1001", "Env": {"OWN": "app"}, "Templates": [OWN, OTHERS, SHARED, ENV]}
    async with a_node(engine, top, job(task)) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running")
        await level(lambda: node.output() == OUTPUT, node.output)
        kinds = [one.kind for one in node.task().events]
        assert "Template Failed" not in kinds
        own = node.home.places(alloc_id(1), "main").task / "local" / "conf" / "own"
        before = own.stat()
    async with a_node(engine, top, job(task)) as node:
        await node.until(lambda: node.status() == "running")
        node.hear(projection(6))
        await node.until(lambda: node.status() == "complete")
        assert node.output() == OUTPUT
        assert (own.stat().st_ino, own.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
