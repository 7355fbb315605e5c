"""Tapes: what a role was given is enough to see it do the same again."""

from pathlib import Path

import pytest

from bench.tapes import play
from services.heartbeat.role import Heartbeat
from shared.bus.tape import Taped, played, taped
from shared.core.role import CaughtUp, Effect, Input, LeadershipWon
from shared.errors import ConfigInvalid
from tests.unit.written_log import WrittenLog


def recorded(folder: Path) -> tuple[Path, list[list[Effect]]]:
    """Let a monitor lead a log without nodes, on tape; returns the tape and the effects as they were."""
    log = WrittenLog()
    role = taped(Heartbeat(instance="one"), str(folder))
    steps: list[list[Input]] = [[*log.records[:2]], [CaughtUp(log.seq), LeadershipWon()], []]
    effects = [role.step(given, 10**9 * nth) for nth, given in enumerate(steps)]
    assert isinstance(role, Taped)
    role.close()
    return folder / "heartbeat-one.tape", effects


def test_a_tape_gives_the_steps_back_to_a_role_that_has_read_nothing(tmp_path: Path) -> None:
    """The recorded role, played from its tape, has the effects that it had."""
    path, effects = recorded(tmp_path)
    role, steps = played(path)
    assert role.next_seq == 1
    again = [role.step(given, now_ns) for given, now_ns in steps]
    assert again == effects
    assert any(effects)
    assert role.next_seq == 3


def test_a_tape_whose_end_is_cut_off_ends_before_it(tmp_path: Path) -> None:
    """A killed role leaves half a step: the whole ones before it count."""
    path, effects = recorded(tmp_path)
    path.write_bytes(path.read_bytes()[:-3])
    _, steps = played(path)
    assert len(list(steps)) == len(effects) - 1 == 2


def test_two_plays_of_a_tape_have_the_same_digest(tmp_path: Path) -> None:
    """The digest of effects is a role's, not a run's."""
    path, _ = recorded(tmp_path)
    one, two = play(path), play(path)
    assert (one.effects, one.steps, one.inputs) == (two.effects, 3, 4)


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    """The role does not run without its tape, and says which folder is meant."""
    with pytest.raises(ConfigInvalid, match="nowhere"):
        taped(Heartbeat(instance="one"), str(tmp_path / "nowhere"))


def test_a_tape_is_for_its_owner_alone(tmp_path: Path) -> None:
    """What jobs hold, secrets too, stands on it: nobody else may read it."""
    path, _ = recorded(tmp_path)
    assert path.stat().st_mode & 0o077 == 0
