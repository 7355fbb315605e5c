"""Identity: entities are named by the transaction that made them; shown ids are computed, never stored.

A key is `seq * 2**20 + ordinal`, ordinal counting the entities of one kind within one transaction. The shown id is
128 bits of it, in UUID form: the high 64 bits mix key and kind, so that a short prefix already tells them apart.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.core.splitmix import splitmix64, splitmix64_array

ORDINAL_BITS = 20
_ORDINAL_MASK = (1 << ORDINAL_BITS) - 1
#: Salts per kind of entity, so that an allocation and an evaluation with one key show different ids.
ALLOC_SALT = 0xA110C
EVAL_SALT = 0xE7A1
#: Length of a shown id, and where its 32 digits stand between the dashes.
_SHOWN = 36
_DIGITS = np.array([at for at in range(_SHOWN) if at not in {8, 13, 18, 23}], dtype=np.intp)
#: From so many on it is cheaper to make them all at once.
_MANY = 20
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


def make_key(seq: int, ordinal: int) -> int:
    """Key of the `ordinal`-th entity that the transaction at `seq` made."""
    assert 0 <= ordinal <= _ORDINAL_MASK, ordinal
    return (seq << ORDINAL_BITS) | ordinal


def key_seq(key: int) -> int:
    """Seq of the transaction that made it."""
    return key >> ORDINAL_BITS


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
