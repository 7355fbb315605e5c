"""Digests of inputs, keyed with a secret of the data directory: that of a short secret cannot be guessed."""

import contextlib
import hmac
import os
from pathlib import Path

_KEY_BYTES = 32
_DIGEST_CHARS = 32


class InputDigests:
    """The key of one data directory, made when it is missing."""

    def __init__(self, top: Path) -> None:
        path = top / "input.key"
        with contextlib.suppress(FileExistsError):
            draft = top / "input.key.draft"
            draft.unlink(missing_ok=True)
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(os.urandom(_KEY_BYTES))
            # Not replaced: what the journal holds was made with the key that is there.
            os.link(draft, path)
        (top / "input.key.draft").unlink(missing_ok=True)
        self._key = path.read_bytes()

    def of(self, content: bytes) -> str:
        """Return the digest of what was prepared."""
        return hmac.digest(self._key, content, "sha256").hex()[:_DIGEST_CHARS]
