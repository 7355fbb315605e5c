"""Templates of a container: the file is at the container's own path, with its mode and owner, before it starts."""

import asyncio
import json
from pathlib import Path

import pytest

from services.agent.executor.task_command import run_command
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
SECRET = "${secret.s.k}"
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


async def test_a_container_gets_its_secrets_and_its_labels_do_not(
    engine: OwnEngine, top: Path
) -> None:
    """In variables, after those of the image, and in arguments; a session in the container has them, too."""
    program = top.parent / "plugins" / "toy"
    program.parent.mkdir(mode=0o755, exist_ok=True)
    program.write_text('#!/bin/sh\necho \'{"result": {"k": "marker-${PATH}-1"}}\'\n')
    program.chmod(0o755)
    task = box_task('echo "$P $1"; exec sleep 300', labels={"a": SECRET, "b": "${P}"})
    task["Config"]["args"] += ["x", SECRET]
    task |= {"Secrets": [{"Name": "s", "Provider": "toy", "Path": "p"}], "Env": {"P": SECRET}}
    async with a_node(engine, top, job(task)) as node:
        node.hear(projection(5, 1))
        await level(lambda: node.output() == "marker-${PATH}-1 marker-${PATH}-1\n", node.output)
        (one,) = node.edge.runs()
        found = await asyncio.to_thread(engine.client.api.inspect_container, one[1].id)
        labels = found["Config"]["Labels"]
        assert (labels["a"], labels["b"]) == (SECRET, SECRET)
        assert "marker" not in json.dumps(labels)
        code, said = await run_command(one[0], one[1], ("sh", "-c", 'echo "$P"'), output_max=99)
        assert (code, said) == (0, "marker-${PATH}-1")
        assert "marker" not in repr(node.states)
        node.hear(projection(6))
        await node.until(lambda: node.status() == "complete")
