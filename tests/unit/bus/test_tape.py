"""Tapes: what a role was given is enough to see it do the same again."""

import pickle
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import pytest

from bench.report.tape_reader import read_tape
from bench.report.tape_replay import lines, made, replay_tape
from schemas.nodes import NodeSpec
from services.agent.role import Agent
from services.heartbeat.role import HeartbeatMonitor
from shared.bus.shell.tape import EFFECTS, INPUTS, TapedRole, record_to_tape
from shared.core.runtime import agent_messages
from shared.core.runtime.keeper_messages import VaultAnswer, VaultEffect
from shared.core.runtime.messages import CaughtUp, Effect, LeadershipWon, Message
from shared.core.runtime.restored import Restored
from shared.core.runtime.role import Input
from shared.errors import ConfigInvalid
from tests.unit.core.state.written_log import WrittenLog


def recorded(folder: Path) -> tuple[Path, list[list[Effect]]]:
    """Let a monitor lead a log without nodes, on tape; returns the tape and the effects as they were."""
    log = WrittenLog()
    role = record_to_tape(HeartbeatMonitor(instance="one"), str(folder))
    steps: list[list[Input]] = [[*log.records[:2]], [CaughtUp(log.seq), LeadershipWon()], []]
    effects = [role.step(given, 10**9 * nth) for nth, given in enumerate(steps)]
    assert isinstance(role, TapedRole)
    role.close()
    return folder / "heartbeat-one.tape", effects


def test_a_tape_gives_the_steps_back_to_a_role_that_has_read_nothing(tmp_path: Path) -> None:
    """The recorded role, played from its tape, has the effects that it had."""
    path, effects = recorded(tmp_path)
    header, steps = read_tape(path)
    role = made(header)
    assert role.next_seq == 1
    again = [role.step(given, now_ns) for given, now_ns in steps]
    assert again == effects
    assert any(effects)
    assert role.next_seq == 3


def test_a_tape_whose_end_is_cut_off_ends_before_it(tmp_path: Path) -> None:
    """A killed role leaves half a step: the whole ones before it count."""
    path, effects = recorded(tmp_path)
    path.write_bytes(path.read_bytes()[:-3])
    _, steps = read_tape(path)
    assert len(list(steps)) == len(effects) - 1 == 2


def test_two_plays_of_a_tape_have_the_same_digest(tmp_path: Path) -> None:
    """The digest of effects is a role's, not a run's."""
    path, _ = recorded(tmp_path)
    one, two = replay_tape(path), replay_tape(path)
    assert (one.effects, one.steps, one.inputs) == (two.effects, 3, 4)


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    """The role does not run without its tape, and says which folder is meant."""
    with pytest.raises(ConfigInvalid, match="nowhere"):
        record_to_tape(HeartbeatMonitor(instance="one"), str(tmp_path / "nowhere"))


def test_a_tape_is_for_its_owner_alone(tmp_path: Path) -> None:
    """A tape holds job data, including secrets: only its owner may read it."""
    path, _ = recorded(tmp_path)
    assert path.stat().st_mode & 0o077 == 0


def test_every_input_and_effect_has_a_word() -> None:
    """Only a state in memory has none: a role that is taped is not given one."""
    inputs = {*get_args(Input), *get_args(agent_messages.AgentInput), *get_args(VaultAnswer)}
    effects = {*get_args(Effect), *get_args(agent_messages.AgentEffect), *get_args(VaultEffect)}
    assert set(INPUTS.values()) == inputs - {Restored}
    assert set(EFFECTS.values()) == effects


def test_an_agent_is_made_again_from_its_header(tmp_path: Path) -> None:
    """Its node and its journal stand on the tape as wire bytes, and so does what it finds later."""
    names = {"node_id": "n1", "host_id": "h", "boot_id": "b"}
    spec, later = NodeSpec(node_id="n1", name="one"), NodeSpec(node_id="n1", name="two")
    journal = [
        agent_messages.ClusterKept(cluster_id="c", seq=7),
        agent_messages.AllocForgotten(key=3),
    ]
    agent: Any = Agent(instance="n1-b", spec=spec, journal=journal, **names)
    given = {**names, "spec": spec, "journal": journal, "disk_kill": False}
    role: Any = record_to_tape(agent, str(tmp_path), given)
    steps: list[list[Any]] = [
        [],
        [agent_messages.NodeFound(spec=later)],
        [Message("projection", "p", b"\xff\x00", token=5)],
    ]
    effects = [role.step(one, 10**9 * nth) for nth, one in enumerate(steps)]
    role.close()
    header, again = read_tape(tmp_path / "agent-n1-b.tape")
    read = [inputs for inputs, _ in again]
    assert read == steps
    twin = made(header)
    assert [twin.step(one, 10**9 * nth) for nth, one in enumerate(read)] == effects
    assert b"shared." not in (tmp_path / "agent-n1-b.tape").read_bytes()


def test_a_pickle_is_no_tape(tmp_path: Path) -> None:
    """What an older release wrote is refused, not guessed at."""
    path = tmp_path / "old.tape"
    path.write_bytes(pickle.dumps(["an", "older", "tape"]))
    with pytest.raises(ConfigInvalid, match="not a tape"):
        read_tape(path)


def test_effects_are_lines_that_can_be_compared(tmp_path: Path) -> None:
    """One line an effect: role, step, tag, fields."""
    path, effects = recorded(tmp_path)
    told = list(lines(replay_tape(path)))
    assert len(told) == len(list(chain.from_iterable(effects))) > 0
    assert told[0].startswith("heartbeat 2 ")
