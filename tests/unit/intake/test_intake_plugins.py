"""Intake checks the options of driver plugins by what nodes registered."""

import json

import msgspec

from schemas.base import NodeId
from schemas.jobs import Verdict
from schemas.nodes import NodeRegistered, NodeSpec
from shared.core.runtime.messages import Reply
from tests.unit.intake.test_intake import Story, a_body, registers


def test_options_of_a_plugin_are_checked_by_what_nodes_registered() -> None:
    """A job is held against the schema of its driver that a node registered; before, it gets a warning."""
    story = Story()
    (command,) = registers(story.run(story.ask(a_body("before"))))
    assert "no node offers driver 'any'" in command.warnings[0]
    schema = json.dumps({"required": ["image"]})
    spec = NodeSpec(
        node_id=NodeId("n1"), attributes={"driver.any": "1", "driver.any.schema": schema}
    )
    story.run(story.log.tx(NodeRegistered(spec=spec, host_id="h", boot_id="b")))
    (reply,) = (one for one in story.run(story.ask(a_body("after"))) if isinstance(one, Reply))
    verdict = msgspec.json.decode(reply.data, type=Verdict)
    assert [one.path for one in verdict.errors] == ["Job.TaskGroups[0].Tasks[0].Config.image"]
