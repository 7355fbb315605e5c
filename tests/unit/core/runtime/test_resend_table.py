"""When what the log does not show is sent again: at once, after a pause, after twice the pause, up to the longest."""

from shared.core.runtime.deadline_timer import RESEND_NS
from shared.core.runtime.resend_table import ResendTable


def test_entries_are_due_in_the_order_in_which_they_were_added() -> None:
    """Sending again moves no entry, so that what is resent keeps its order."""
    table = ResendTable[str]()
    table.add("b", RESEND_NS)
    table.add("a", 0)
    assert table.next_ns() == 0
    assert table.due(0) == ["a"]
    table.sent_again("a", 5)
    assert table.next_ns() == RESEND_NS
    assert table.due(RESEND_NS + 5) == ["b", "a"]


def test_pauses_double_up_to_the_longest_and_a_new_writer_begins_anew() -> None:
    """An applier that is slow is not flooded; one that is new has got nothing."""
    table = ResendTable[str](3 * RESEND_NS)
    table.add("a", RESEND_NS)
    for pause in (2, 3, 3):
        table.sent_again("a", 0)
        assert table.next_ns() == pause * RESEND_NS
    table.hurry(7)
    assert table.due(7) == ["a"]
    table.sent_again("a", 7)
    assert table.next_ns() == 7 + 2 * RESEND_NS


def test_what_the_log_shows_is_gone() -> None:
    """It is not due again; what is not in the table is no fault."""
    table = ResendTable[str]()
    table.add("a", 0)
    assert "a" in table
    table.remove("a")
    table.remove("a")
    assert not len(table)
    assert (table.due(9), table.next_ns()) == ([], 0)
    table.add("a", 0)
    table.clear()
    assert "a" not in table
