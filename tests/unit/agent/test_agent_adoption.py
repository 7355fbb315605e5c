"""Another life of an agent, from its journal alone."""

from pathlib import Path

import pytest

from services.agent.executor.journal import Journal, JournalState, decode_lines, encode_line
from shared.core.runtime import agent_messages
from shared.errors import ConfigInvalid
from tests.unit.agent.agent_story import SECOND, Story, alloc, job_json, task_json


def lived(**more: object) -> Story:
    """An agent with one running task, about to die."""
    return Story(**more).hear(5, alloc()).started()  # type: ignore[arg-type]


def test_what_ran_is_looked_for_and_not_started() -> None:
    """A life that begins asks its driver for the run that the journal names, and starts none beside it."""
    story = lived().restarted()
    (asked,) = story.did(agent_messages.RecoverTask)
    assert (asked.key, asked.task, asked.run, asked.driver) == (7, "main", 1, "raw_exec")
    story.started(adopted=True).hear(6, alloc())
    assert not story.starts()
    task = story.state().tasks["main"]
    assert task.pid == 101
    assert [event.kind for event in task.events] == ["Started", "Recovered"]


def test_an_adopted_task_is_stopped_only_by_an_order() -> None:
    """After the restart, too, silence ends nothing and an older projection is none; a newer one that omits it is."""
    story = lived().hear(9, alloc()).restarted()
    story.started(adopted=True).wait(3600).hear(8)
    assert not story.did(agent_messages.SignalTask)
    assert story.hear(10).did(agent_messages.SignalTask)


def test_an_end_while_unwatched_counts() -> None:
    """An end that was found follows the policy, with the code that it had."""
    story = lived(job=job_json(kind="batch")).restarted().exited(0).hear(6, alloc())
    assert story.state().status == "complete"
    assert not story.wait(60).starts()


def test_a_run_that_never_began_is_started() -> None:
    """A start that was written but never made is made, once the cluster still wants it, at no charge."""
    gone = agent_messages.TaskGone(key=7, task="main", run=1, started=False)
    story = lived().restarted().step(gone)
    assert not story.wait(60).starts()
    story.hear(6, alloc())
    assert story.starts() == [("main", 2)]
    assert story.state().tasks["main"].restarts == 0


def test_a_lost_run_is_a_failure() -> None:
    """A run that began and left nothing to tell its end counts as failed, by the policy."""
    gone = agent_messages.TaskGone(
        key=7, task="main", run=1, started=True, reason="machine restarted"
    )
    story = lived().restarted().step(gone)
    assert story.state().status == "pending"
    story.hear(6, alloc())
    assert story.wait(20).starts() == [("main", 2)]


def test_a_run_that_a_reboot_ended_is_not_charged() -> None:
    """A power loss is no fault of the task: it starts again where the policy allows no restart."""
    policy = {"Attempts": 0, "Interval": 1800 * SECOND, "Delay": SECOND, "Mode": "fail"}
    gone = agent_messages.TaskGone(
        key=7, task="main", run=1, started=True, reason="node was rebooted", charged=False
    )
    story = lived(job=job_json(restart=policy)).restarted().step(gone).hear(6, alloc())
    assert story.starts() == [("main", 2)]
    assert story.state().tasks["main"].restarts == 0


def test_restarts_are_remembered() -> None:
    """Attempts used up in one life are used up in the next."""
    policy = {"Attempts": 1, "Interval": 1800 * SECOND, "Delay": SECOND, "Mode": "fail"}
    story = lived(job=job_json(restart=policy)).exited(1).wait(2).started(run=2)
    again = story.restarted()
    again.started(run=2, adopted=True).exited(1, run=2)
    assert again.state().status == "failed"
    assert again.state().tasks["main"].restarts == 1


def test_a_stop_is_remembered() -> None:
    """A stop that was ordered before the restart is finished after it, without the bus."""
    story = lived().hear(6)
    again = story.restarted().started(adopted=True)
    assert again.did(agent_messages.SignalTask)
    assert again.wait(6).did(agent_messages.KillTask)
    assert again.exited(None, signal=9).state().status == "complete"


def test_a_dead_task_stays_dead() -> None:
    """What had ended is neither looked for nor started again, and is reported again in the new boot."""
    story = lived(job=job_json(kind="batch")).exited(0).restarted()
    assert not story.did(agent_messages.RecoverTask)
    story.hear(6, alloc())
    assert not story.starts()
    report = story.reports()[-1]
    assert (report.boot_id, report.states[0].status) == ("b2", "complete")


def test_numbers_begin_again_with_a_boot() -> None:
    """A new life numbers its reports from 1, under its own boot."""
    first = lived().restarted().reports()[0]
    assert (first.number, first.boot_id) == (1, "b2")
    assert first.spec is not None


def test_a_failed_sibling_still_ends_the_others() -> None:
    """When the agent died between a failure and its siblings' end, the next life ends them."""
    job = job_json(task_json("a"), task_json("b"), restart={"Attempts": 0})
    story = Story(job=job).hear(5, alloc()).started("a").started("b").exited(1, "a")
    last = story.journal.index(
        next(e for e in story.journal if isinstance(e, agent_messages.TaskKept) and e.stopping)
    )
    story.journal = story.journal[:last]
    again = story.restarted().started("b", adopted=True)
    assert [one.task for one in again.did(agent_messages.SignalTask)] == ["b"]


def test_a_second_restart_is_like_the_first() -> None:
    """What a life inherits it hands on, whether or not it heard anything."""
    story = lived().restarted("b2").started(adopted=True).restarted("b3")
    assert len(story.did(agent_messages.RecoverTask)) == 1
    story.started(adopted=True).hear(6, alloc())
    assert not story.starts()


# ---- the journal on disk ----


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    """What was appended is what the next life reads, in order."""
    story = lived().exited(1)
    journal = Journal(tmp_path / "journal")
    for entry in story.journal:
        journal.append([entry], sync=False)
    journal.close()
    assert Journal(tmp_path / "journal").entries == story.journal


def test_a_torn_end_is_dropped(tmp_path: Path) -> None:
    """Every cut through the last line loses that line alone, and the next entry stands behind whole ones."""
    first, second = lived().journal[:2]
    whole, cut = encode_line(first), encode_line(second)
    path = tmp_path / "journal"
    for length in range(len(cut)):
        path.write_bytes(whole + cut[:length])
        journal = Journal(path)
        assert journal.entries == [first]
        assert journal.torn_bytes == length
        journal.append([second], sync=True)
        journal.close()
        assert path.read_bytes() == whole + cut


def test_damage_before_the_end_is_refused() -> None:
    """A flipped bit in any line but the last is no torn end: it is named."""
    lines = [encode_line(entry) for entry in lived().journal]
    data = bytearray(b"".join(lines))
    data[len(lines[0]) + 20] ^= 1
    with pytest.raises(ConfigInvalid, match=f"damaged at byte {len(lines[0])}"):
        decode_lines(bytes(data), "journal")


def test_a_newer_releases_entry_is_refused() -> None:
    """An entry whose checksum holds but whose kind is unknown was written by a newer release."""
    line = encode_line(agent_messages.ClusterKept(cluster_id="c", seq=1))
    body = line[9:-1].replace(b'"cluster"', b'"planet"')
    import zlib

    with pytest.raises(ConfigInvalid, match="newer release"):
        decode_lines(b"%08x %b\n" % (zlib.crc32(body), body), "journal")


def test_a_failed_write_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up in the middle of a line leaves the file as it was; the next write holds what it missed."""
    import os

    entries = lived().journal
    wanted = JournalState()
    for entry in entries:
        wanted.take(entry)
    journal = Journal(tmp_path / "journal")
    journal.append(entries[:1], sync=True)
    whole = (tmp_path / "journal").read_bytes()
    real = os.write

    def half(fd: int, data: bytes) -> int:
        real(fd, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    for entry in entries[1:-1]:
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", half)
            with pytest.raises(OSError, match="No space"):
                journal.append([entry], sync=True)
        assert (tmp_path / "journal").read_bytes() == whole
    journal.append(entries[-1:], sync=True)
    journal.close()
    assert Journal(tmp_path / "journal").entries == wanted.entries()


def test_a_long_journal_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal grows with what is kept, not with what happened; nothing that matters is lost on the way."""
    monkeypatch.setattr("services.agent.executor.journal.COMPACT_BYTES_MIN", 4000)
    story = lived()
    journal = Journal(tmp_path / "journal")
    for _ in range(50):
        journal.append(story.journal, sync=False)
    kept = JournalState()
    for entry in story.journal:
        kept.take(entry)
    assert (tmp_path / "journal").stat().st_size < 10 * 1000
    journal.close()
    again = JournalState()
    for entry in Journal(tmp_path / "journal").entries:
        again.take(entry)
    assert again.entries() == kept.entries()


def test_an_order_does_not_lose_the_plan() -> None:
    """A stop is written without the plan, which is then still there."""
    kept = JournalState()
    for entry in lived().hear(6).journal:
        kept.take(entry)
    found = [entry for entry in kept.entries() if isinstance(entry, agent_messages.AllocKept)]
    assert found[0].alloc.desired == "stop"
    assert b"raw_exec" in bytes(found[0].plan)
