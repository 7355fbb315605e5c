"""Keys of `caravan top`: bindings, help and the line at the bottom derive from one table.

Most keys of time are those of the console; `<` and `>` go by mark here.
"""

from typing import NamedTuple


class Key(NamedTuple):
    """A key. `names`: textual's names of it; `action`: what the app does."""

    names: str
    sign: str
    text: str
    action: str
    #: its word in the line at the bottom; empty: only in the help.
    short: str = ""


KEYS = (
    Key("1", "1", "jobs", "jobs"),
    Key("2", "2", "nodes", "nodes"),
    Key("3", "3", "what waits for a place, the next one first", "waiting"),
    Key("4", "4", "allocations", "allocations"),
    Key("enter", "enter", "allocations of a job or node; details of the others", "drill", "open"),
    Key("i", "i", "details of the row", "inspect"),
    Key("escape", "esc", "back: close, unfilter, or leave the job or node", "back"),
    Key("slash", "/", "filter the rows by a text", "filter", "filter"),
    Key("colon", ":", "go to a seq, a time, a job, a node or an allocation", "goto", "go to"),
    Key("l", "l", "logs of the allocation's task", "logs", "logs"),
    Key("w", "w", "why the allocation is on its node, or why the group waits", "why", "why"),
    Key("comma", ",", "previous record", "previous_record"),
    Key("full_stop", ".", "next record", "next_record"),
    Key("less_than_sign", "<", "previous mark", "previous_mark"),
    Key("greater_than_sign", ">", "next mark", "next_mark"),
    Key("space,p", "space", "play the log, or stop", "play", "play"),
    Key("n", "n", "now", "now", "now"),
    Key("m", "m", "pin this moment, to compare with it", "pin"),
    Key("d", "d", "differences between the pinned moment and this one", "diff"),
    Key("question_mark", "?", "this help", "help", "help"),
    Key("q", "q", "quit", "quit", "quit"),
)


def help_text() -> str:
    """Every key in a line."""
    return "\n".join(f"{one.sign:>6}  {one.text}" for one in KEYS)


def hint_text() -> str:
    """The keys of the line at the bottom."""
    # The help and the way out first: a narrow terminal cuts the end.
    return "  ".join(f"{one.sign} {one.short}" for one in (*KEYS[-2:], *KEYS[:-2]) if one.short)
