"""Sealed boxes: the format in fixed vectors, and what does not open."""

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from shared.sealed_box import (
    OVERHEAD_BYTES,
    SealedBoxInvalid,
    context_bytes,
    key_id,
    new_pair,
    open_box,
    seal,
    sealed_with,
)

#: What a client in another language is checked against: recipient, ephemeral key, nonce and the box.
RECIPIENT = bytes(range(32))
EPHEMERAL = bytes(range(32, 64))
NONCE = bytes(range(12))
PUT = ("put", "cluster-1", "app/db", "request-1")
PLAIN = b'{"password":"s3cret","user":"caravan"}'
PUBLIC = "8f40c5adb68f25624ae5b214ea767a6ec94d829d3d7b5e1ad1ba6f3e2138285f"
KEY_ID = "eedd883da0a94515"
BOX = (
    "01358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd166254000102030405060708090a0b"
    "b0424ca74caa04d97a876f74673dc4130b042ae3563b069347691076d5ed5bbf0c952267b04a04e115280141"
    "33cadb6c5be904db99e2"
)
#: Nothing sealed, with a context of texts that are not ASCII, and none.
EMPTY_BOX = (
    "01358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd166254000102030405060708090a0b"
    "df64d4d6cf3f52e616050d8469943fb8"
)


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def test_a_box_of_fixed_keys_is_the_vector() -> None:
    """The format is fixed: the same keys, nonce, plain bytes and context give the same box, which opens."""
    public = public_of(RECIPIENT)
    made = sealed_with(PLAIN, public, PUT, ephemeral=EPHEMERAL, nonce=NONCE)
    empty = sealed_with(b"", public, ("get", "ä", "", "0"), ephemeral=EPHEMERAL, nonce=NONCE)
    assert (public.hex(), key_id(public)) == (PUBLIC, KEY_ID)
    assert (made.hex(), empty.hex()) == (BOX, EMPTY_BOX)
    assert open_box(made, RECIPIENT, PUT) == PLAIN
    assert made[:1] == b"\x01" and made[1:33] == public_of(EPHEMERAL) and made[33:45] == NONCE


def test_a_context_is_texts_behind_their_lengths() -> None:
    """Each text stands behind the length of its UTF-8, so that no two lists are the same bytes."""
    assert context_bytes(("put", "ä")) == b"\0\0\0\x03put\0\0\0\x02\xc3\xa4"
    assert context_bytes(("a", "b")) != context_bytes(("ab",))
    assert context_bytes(("a", "")) != context_bytes(("a",))


def test_every_box_is_another() -> None:
    """Two boxes of the same bytes share nothing: key and nonce are drawn for each."""
    private, public = new_pair()
    one, two = seal(PLAIN, public, PUT), seal(PLAIN, public, PUT)
    assert one[1:33] != two[1:33] and one[33:45] != two[33:45]
    assert open_box(one, private, PUT) == open_box(two, private, PUT) == PLAIN
    assert len(one) == len(PLAIN) + OVERHEAD_BYTES and PLAIN not in one


@pytest.mark.parametrize("place", range(4))
def test_another_context_does_not_open(place: int) -> None:
    """A box that is moved to another verb, cluster, path or request does not open."""
    private, public = new_pair()
    other = tuple(f"{part}x" if nth == place else part for nth, part in enumerate(PUT))
    with pytest.raises(SealedBoxInvalid, match="another request"):
        open_box(seal(PLAIN, public, PUT), private, other)


def test_another_key_does_not_open() -> None:
    """Only the private key of the recipient opens a box."""
    with pytest.raises(SealedBoxInvalid):
        open_box(seal(PLAIN, new_pair()[1], PUT), new_pair()[0], PUT)


def test_no_bit_of_a_box_may_change() -> None:
    """A box with any byte changed, cut or longer does not open."""
    private, public = new_pair()
    box = seal(b"x", public, PUT)
    changed = [box[:at] + bytes([box[at] ^ 1]) + box[at + 1 :] for at in range(len(box))]
    for bad in (*changed, *(box[:at] for at in range(len(box))), box + b"\0"):
        with pytest.raises(SealedBoxInvalid):
            open_box(bad, private, PUT)


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(33), bytes(32), b"\x01" + bytes(31)])
def test_what_is_no_public_key_is_refused(public: bytes) -> None:
    """Keys of another length and points of small order are refused in both directions."""
    with pytest.raises(SealedBoxInvalid):
        seal(PLAIN, public, PUT)
    with pytest.raises(SealedBoxInvalid):
        open_box(b"\x01" + public[:32].ljust(32, b"\0") + bytes(40), new_pair()[0], PUT)
