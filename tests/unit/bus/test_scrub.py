"""The background read of the stored log: it follows the chain and names what does not hold."""

import pytest

from services.view.scrub_report import ScrubReport
from shared.bus.log.scrub import ScrubPass
from shared.core.runtime.messages import LogScrubbed, Record
from shared.errors import LogDamaged
from tests.unit.view.view_story import Story


def records() -> list[Record]:
    """A lease, a cluster, and three nodes."""
    story = Story()
    for name in ("n1", "n2", "n3"):
        story.node(name)
    return story.records


def scrubbed(given: list[Record]) -> int:
    """Take all of them; returns what would be next."""
    one = ScrubPass()
    for record in given:
        one.take(record)
    return one.next_seq


def test_a_sound_log_is_followed_to_its_end() -> None:
    """From its beginning, and from where the older generations were dropped."""
    whole = records()
    assert scrubbed(whole) == whole[-1].seq + 1
    assert scrubbed(whole[2:]) == whole[-1].seq + 1


@pytest.mark.parametrize("at", range(0, 60, 7))
def test_every_flipped_byte_is_found(at: int) -> None:
    """Wherever a byte of a record is changed, it, or its successor, does not hold."""
    whole = records()
    data = bytearray(whole[2].data)
    data[at * len(data) // 60] ^= 1
    whole[2] = Record(3, whole[2].subject, bytes(data))
    with pytest.raises(LogDamaged, match=r"record (3|4)"):
        scrubbed(whole)


def test_a_missing_record_is_found() -> None:
    """A hole in the numbers is damage."""
    whole = records()
    with pytest.raises(LogDamaged, match="missing"):
        scrubbed(whole[:2] + whole[3:])


def test_an_alarm_ends_with_a_whole_sound_pass() -> None:
    """Not with the first batch of the next one."""
    report = ScrubReport()
    report.learn(LogScrubbed(seq=7, problem="checksum"))
    assert "checksum" in report.alarm
    report.learn(LogScrubbed(seq=3))
    assert report.alarm and report.metrics()["caravan_view_scrub_damage_info"] == 1
    report.learn(LogScrubbed(seq=9, is_pass_done=True))
    assert report.alarm == ""
    assert report.metrics()["caravan_view_scrub_passes_total"] == 1
