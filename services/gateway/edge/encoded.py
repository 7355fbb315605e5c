"""Answers that are kept as bytes while the tables that they are made from do not change."""

import gzip
from collections.abc import Callable, Hashable

import msgspec

#: Answers kept, and bytes of the largest one that is.
KEPT_MAX, BYTES_MAX = 2_000, 64 * 1024
_ENCODER = msgspec.json.Encoder()


class EncodedAnswer:
    """The bytes of an answer, and compressed once asked for."""

    __slots__ = ("_zipped", "body")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self._zipped = b""

    def zipped(self) -> bytes:
        """The bytes compressed with gzip."""
        self._zipped = self._zipped or gzip.compress(self.body, 1)
        return self._zipped


class EncodedAnswers:
    """Answers by key; one is made anew when its stamp has changed."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[Hashable, EncodedAnswer]] = {}

    def get(self, key: Hashable, stamp: Hashable, make: Callable[[], object]) -> EncodedAnswer:
        """The answer under a key; `make` gives its value where it is not kept with this stamp."""
        known = self._kept.get(key)
        if known is not None and known[0] == stamp:
            return known[1]
        answer = EncodedAnswer(_ENCODER.encode(make()))
        if len(answer.body) <= BYTES_MAX:
            if len(self._kept) >= KEPT_MAX:
                # The oldest, which may be in use: it is made again.
                del self._kept[next(iter(self._kept))]
            self._kept[key] = (stamp, answer)
        return answer
