"""Records decoded once a world: a dozen replicas read the same frozen bytes.

Decides nothing: the checksum and the decoding of shared/core/log.py, remembered by the bytes themselves.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from schemas.envelope import Record
from shared.core.log import Chain

Decode = Callable[[int, str, bytes], Record | None]


class Memo:
    """What each record's bytes decode to; what raises is not remembered."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._known: dict[tuple[str, bytes], Record | None] = {}

    def decode(self, seq: int, subject: str, data: bytes) -> Record | None:
        """Decode as `Chain` does."""
        key = (subject, data)
        try:
            return self._known[key]
        except KeyError:
            record = self._known[key] = self._decode(seq, subject, data)
            return record


@contextmanager
def remembered() -> Generator[Memo]:
    """Let every chain of this process share one memory of decoded records."""
    plain: Decode = Chain._decode  # noqa: SLF001
    memo = Memo(plain)
    setattr(Chain, "_decode", staticmethod(memo.decode))  # noqa: B010 - mypy forbids the plain form.
    try:
        yield memo
    finally:
        setattr(Chain, "_decode", staticmethod(plain))  # noqa: B010
