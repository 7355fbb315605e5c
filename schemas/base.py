"""The two bases of everything on the wire, and the types that all families share.

Every message is JSON: object fields are omitted when they hold
their default, readers ignore fields they do not know, so a field may be added (with a default) and never change.
Next: `envelope.py` (one record of the log), then the families in the order jobs, nodes, evaluations, plans,
allocations, policy.
"""

from functools import cache
from typing import NewType

import msgspec

#: Nanoseconds of a second, bytes of a MiB.
SECOND_NS = 1_000_000_000
MIB = 1 << 20

JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)
#: Identity of an evaluation: `seq * 2**20 + ordinal` of the transaction that created it (shared/core/state/ids.py).
EvalKey = NewType("EvalKey", int)
#: Identity of an allocation, made the same way.
AllocKey = NewType("AllocKey", int)
#: Identity of a deployment: that of the evaluation which was created when its version was registered.
DeploymentKey = NewType("DeploymentKey", int)
#: Identity of a rollout of several jobs, made the same way.
RolloutKey = NewType("RolloutKey", int)


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


#: JSON readers that hold numbers as doubles are exact up to here.
DOUBLE_MAX = 2**53 - 1
_TEXT = "_text"


class ExactWire(Wire, frozen=True, kw_only=True):
    """A part of an answer, with a field `<name>_text` for each integer `<name>` that a double may not hold.

    The texts are filled where they are needed. The log and commands hold numbers alone.
    """

    def __post_init__(self) -> None:
        """Fill the texts of integers beyond 2^53."""
        for name, text in _told_exactly(type(self)):
            value = getattr(self, name)
            if not -DOUBLE_MAX <= value <= DOUBLE_MAX:
                msgspec.structs.force_setattr(self, text, str(value))


@cache
def _told_exactly(of: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    names = of.__struct_fields__
    return tuple((one, one + _TEXT) for one in names if one + _TEXT in names)
