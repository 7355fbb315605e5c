"""One-time codes: the command line draws one with its login, the page exchanges it for that login, once."""

import secrets
import time

#: Seconds that a code is good for, and codes at a time.
LIFETIME_S, CODES_MAX = 600.0, 1_000


class OneTimeCodes:
    """Codes that were drawn and not exchanged yet."""

    def __init__(self) -> None:
        self._tokens: dict[str, tuple[float, str]] = {}

    def draw(self, token: str) -> str:
        """Draw a code for a login that was accepted."""
        now_s = time.monotonic()
        kept = {code: one for code, one in self._tokens.items() if one[0] > now_s}
        while len(kept) >= CODES_MAX:
            del kept[next(iter(kept))]
        code = secrets.token_urlsafe(24)
        self._tokens = {**kept, code: (now_s + LIFETIME_S, token)}
        return code

    def exchange(self, code: str) -> str:
        """The login of a code, which is spent; empty: spent, too old, or never drawn."""
        deadline_s, token = self._tokens.pop(code, (0.0, ""))
        return token if deadline_s > time.monotonic() else ""
