"""Identity: entities are named by the transaction that made them; shown ids are computed, never stored.

A key is `(seq + incarnation) * 2**20 + ordinal`, ordinal counting the entities of one kind within one transaction. The
incarnation is 0 until the log begins a new one (ADR 27): from then on no key is one of a history that was lost. The
shown id is 128 bits of the key, in UUID form: the high 64 bits mix key and kind, so that a short prefix already tells
them apart.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from shared.core.splitmix import splitmix64, splitmix64_array

ORDINAL_BITS = 20
_ORDINAL_MASK = (1 << ORDINAL_BITS) - 1
#: Above every seq and incarnation: with the ordinal it fills 63 bits.
_NUMBER_MAX = (1 << 43) - 1
#: Salts per kind of entity, so that an allocation and an evaluation with one key show different ids.
ALLOC_SALT = 0xA110C
EVAL_SALT = 0xE7A1
DEPLOYMENT_SALT = 0xDE910
ROLLOUT_SALT = 0x20110
#: Length of a shown id, and where its 32 digits stand between the dashes.
_SHOWN = 36
_DIGITS = np.array([at for at in range(_SHOWN) if at not in {8, 13, 18, 23}], dtype=np.intp)
#: From so many on it is cheaper to make them all at once.
_MANY = 20
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


def make_key(number: int, ordinal: int) -> int:
    """Key of the `ordinal`-th entity that a transaction made. `number`: its seq plus its incarnation."""
    assert 0 <= ordinal <= _ORDINAL_MASK, ordinal
    return (number << ORDINAL_BITS) | ordinal


class Incarnations:
    """Incarnations of a log, oldest first: (first seq, incarnation). Before the first of them it is 0."""

    def __init__(self, begun: Sequence[tuple[int, int]] = ()) -> None:
        self.begun: list[tuple[int, int]] = list(begun)

    @property
    def newest(self) -> int:
        """The one in force."""
        return self.begun[-1][1] if self.begun else 0

    @property
    def first_seq(self) -> int:
        """Seq at which the newest began; 0: there is none."""
        return self.begun[-1][0] if self.begun else 0

    @property
    def former(self) -> int:
        """The one before the newest."""
        return self.begun[-2][1] if len(self.begun) > 1 else 0

    def with_next(self, incarnation: int, first_seq: int) -> "Incarnations":
        """These and one more; what others hold stays as it is."""
        return Incarnations([*self.begun, (first_seq, incarnation)])

    def first_lost(self, incarnation: int, seq: int) -> int:
        """First seq of this log that is another record than in the history which reached `seq` of an incarnation.

        0: that history is this log's, as far as its incarnations tell: what is ahead of the newest is not compared.
        """
        at = bisect_right(self.begun, incarnation, key=itemgetter(1))
        if at == len(self.begun):
            return 0
        is_known = not incarnation or (at > 0 and self.begun[at - 1][1] == incarnation)
        first = self.begun[at][0]
        return first if seq >= first or not is_known else 0

    def key(self, seq: int, ordinal: int) -> int:
        """Key of the `ordinal`-th entity that the transaction at `seq` made."""
        at = bisect_right(self.begun, (seq, _NUMBER_MAX))
        return make_key(seq + (self.begun[at - 1][1] if at else 0), ordinal)

    def seq(self, key: int) -> int:
        """Seq of the transaction that made it."""
        number = key >> ORDINAL_BITS
        for first_seq, incarnation in reversed(self.begun):
            if number >= first_seq + incarnation:
                return number - incarnation
        return number

    def seqs(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Seqs of the transactions that made them. Shapes: (N,)."""
        numbers = keys >> ORDINAL_BITS
        if not self.begun:
            return numbers
        firsts = np.array([first + number for first, number in self.begun], dtype=np.int64)
        shifts = np.array([0, *(number for _, number in self.begun)], dtype=np.int64)
        found: NDArray[np.int64] = numbers - shifts[np.searchsorted(firsts, numbers, "right")]
        return found


def shown_id(key: int, salt: int) -> str:
    """UUID-shaped id of a key."""
    high = splitmix64(key ^ (salt << 44))
    low = splitmix64(high ^ key)
    text = f"{high:016x}{low:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def shown_halves(
    keys: NDArray[np.int64], salt: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """High and low 64 bits of many shown ids. Shapes: keys, results (N,)."""
    raw = keys.astype(np.uint64)
    high = splitmix64_array(raw ^ np.uint64(salt << 44))
    return high, splitmix64_array(high ^ raw)


def shown_ids(keys: NDArray[np.int64], salt: int) -> list[str]:
    """UUID-shaped ids of many keys: equal to `shown_id` of each. Shapes: keys (N,)."""
    words = np.empty((len(keys), 2), dtype=">u8")
    words[:, 0], words[:, 1] = shown_halves(keys, salt)
    # All texts at once, cut apart afterwards: formatting one by one costs ten times as much.
    octets = words.view(np.uint8)
    texts = np.full((len(keys), _SHOWN), ord("-"), dtype=np.uint8)
    texts[:, _DIGITS[0::2]] = _HEX[octets >> 4]
    texts[:, _DIGITS[1::2]] = _HEX[octets & 15]
    whole = texts.tobytes().decode("ascii")
    return [whole[at : at + _SHOWN] for at in range(0, len(whole), _SHOWN)]


def alloc_id(key: int) -> str:
    """Shown id of an allocation."""
    return shown_id(key, ALLOC_SALT)


def eval_id(key: int) -> str:
    """Shown id of an evaluation."""
    return shown_id(key, EVAL_SALT)


def deployment_id(key: int) -> str:
    """Shown id of a deployment."""
    return shown_id(key, DEPLOYMENT_SALT)


def rollout_id(key: int) -> str:
    """Shown id of a rollout."""
    return shown_id(key, ROLLOUT_SALT)


def eval_ids(keys: Sequence[int]) -> list[str]:
    """Shown ids of some evaluations."""
    if len(keys) < _MANY:
        return [eval_id(key) for key in keys]
    return shown_ids(np.array(keys, dtype=np.int64), EVAL_SALT)


def match_prefix(keys: NDArray[np.int64], prefix: str, salt: int) -> NDArray[np.intp]:
    """Positions of the keys whose shown id starts with `prefix` (hex with or without dashes), in one vector pass.

    Shapes: keys (N,). Raises ValueError when the prefix is not hexadecimal.
    """
    digits = prefix.replace("-", "").lower()
    if not digits:
        return np.arange(len(keys))
    head = digits[:16]
    shift = np.uint64(64 - 4 * len(head))
    mixed = splitmix64_array(keys.astype(np.uint64) ^ np.uint64(salt << 44))
    found = np.flatnonzero((mixed >> shift) == np.uint64(int(head, 16)))
    if len(digits) <= 16:
        return found
    exact = [i for i in found if shown_id(int(keys[i]), salt).replace("-", "").startswith(digits)]
    return np.asarray(exact, dtype=np.intp)
