"""Records decoded once: all replicas of a run read the same frozen object, as long as they are not far apart.

Decides nothing: the checksum and the decoding of shared/core/log.py, remembered by place and bytes. Bounded, other
than `memo.py`: a run of a day has half a million records.
"""

from collections.abc import Generator
from contextlib import contextmanager

from schemas.envelope import Record
from shared.core.log import Chain
from shared.sim.memo import Decode

#: Replicas are seldom further apart; one that is decodes for itself.
KEPT = 4096


class Recent:
    """What the newest records decode to, by seq; what raises is not remembered."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._known: dict[int, tuple[bytes, Record | None]] = {}

    def decode(self, seq: int, subject: str, data: bytes) -> Record | None:
        """Decode as `Chain` does."""
        known = self._known.get(seq)
        if known is not None and known[0] is data:
            return known[1]
        record = self._decode(seq, subject, data)
        self._known[seq] = (data, record)
        self._known.pop(seq - KEPT, None)
        return record


@contextmanager
def recent() -> Generator[Recent]:
    """Let every chain of this process share one memory of the newest records."""
    plain: Decode = Chain._decode  # noqa: SLF001
    memory = Recent(plain)
    setattr(Chain, "_decode", staticmethod(memory.decode))  # noqa: B010 - mypy forbids the plain form.
    try:
        yield memory
    finally:
        setattr(Chain, "_decode", staticmethod(plain))  # noqa: B010
