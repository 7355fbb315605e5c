"""The two bases of everything on the wire, and the types that all families share.

Decides nothing. Must not know any other package. Every message is JSON: object fields are omitted when they hold
their default, readers ignore fields they do not know, so a field may be added (with a default) and never change.
Next: `envelope.py` (one record of the log), then the families in the order jobs, nodes, evaluations, plans,
allocations, policy.
"""

from typing import NewType

import msgspec

JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)
#: Identity of an evaluation: `seq * 2**20 + ordinal` of the transaction that created it (shared/core/ids.py).
EvalKey = NewType("EvalKey", int)
#: Identity of an allocation, made the same way.
AllocKey = NewType("AllocKey", int)


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A part of a message: requests, replies and the values inside events."""


class Event(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="type",
    gc=False,
):
    """One fact. Subclasses carry a tag `noun.verb_past`; a tag is never reused and never changes its meaning."""


class Command(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="type",
    gc=False,
):
    """One request to the plan applier. Its natural key is named in its docstring; sending it twice is harmless."""
