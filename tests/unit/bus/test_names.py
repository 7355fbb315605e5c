"""Tokens of ids: what may stand in a subject or a path."""

import pytest

from shared.protocol.id_tokens import TOKEN_BYTES_MAX, id_token, token_id


@pytest.mark.parametrize(
    "identifier", ["web", "A-z_09", "a.b", "a/../b", "~2E", "é", "a\n", "*", ">", " "]
)
def test_a_token_holds_nothing_but_letters_and_names_its_id(identifier: str) -> None:
    """Whatever the id, its token has no wildcard, dot, slash or line break, and the id comes back from it."""
    token = id_token(identifier)
    assert token_id(token) == identifier
    assert token.isascii()
    assert all(one.isalnum() or one in "-_~" for one in token)


def test_ids_of_no_or_too_many_bytes_have_no_token() -> None:
    """The longest id that is its own token has one, a longer one and the empty one do not."""
    assert id_token("x" * TOKEN_BYTES_MAX) == "x" * TOKEN_BYTES_MAX
    for bad in ("", "x" * (TOKEN_BYTES_MAX + 1), "." * (TOKEN_BYTES_MAX // 3 + 1)):
        with pytest.raises(ValueError, match="token"):
            id_token(bad)
