"""Says on stderr what a command waits for: a service that has not answered, or a bus that cannot commit.

Decides when: within two seconds of its start, once for each reason. Looks at the cluster only while a request waits, or
where the command waits for commits.
"""

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Sequence

import msgspec

from schemas.bus_answers import BusStatus
from schemas.projections import Query
from services.cli.runtime.output import strip_control_chars
from shared.bus.connection.nats_client import redacted_url
from shared.bus.connection.public_client import Client
from shared.bus.connection.server_probe import probe
from shared.errors import BusUnavailable
from shared.protocol import subjects

#: Two of these, and the connection before them, which takes 1.5 s where it is not at once refused, are two seconds.
_LOOK_EVERY_S, _ANSWER_S = 0.7, 0.5


class _Probe(msgspec.Struct):
    bus: BusStatus = BusStatus()


class BusNotices:
    """What one connection of a command waits for. `follows_commits`: the command waits for the log, asked or not."""

    def __init__(self, client: Client, where: str, *, follows_commits: bool) -> None:
        self._client = client
        self._where = where
        self._follows_commits = follows_commits
        #: requests without an answer, oldest first, and those of the look before.
        self._asked: list[str] = []
        self._asked_before: list[str] = []
        self._said = ""
        #: why nothing can be committed; empty: commits are possible, or that is not known.
        self.reason = ""

    @contextlib.contextmanager
    def request(self, service: str, subject: str) -> Iterator[None]:
        """Between a request and its answer."""
        text = f"no answer of {service} to {subject} at {self._where} yet"
        self._asked.append(text)
        try:
            yield
        finally:
            self._asked.remove(text)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if self._asked or self._follows_commits:
                self.reason = await self._why_blocked()
                self.look()

    def look(self) -> None:
        """Print what is waited for, unless the last line says so: a blocked bus, else a request as old as a look."""
        late = [one for one in self._asked if one in self._asked_before]
        self._asked_before = list(self._asked)
        text = self.reason or (late[0] if late else "")
        if text and text != self._said:
            self._said = text
            print(strip_control_chars(f"waiting: {text}"), file=sys.stderr, flush=True)

    async def _why_blocked(self) -> str:
        body = msgspec.json.encode(Query())
        try:
            raw = await self._client.request_bytes(subjects.query("cluster"), body, _ANSWER_S)
            return msgspec.json.decode(raw, type=_Probe).bus.reason
        except (BusUnavailable, msgspec.MsgspecError):
            # The view may be what the command waits for.
            return ""


async def which_answer(url: str) -> str:
    """Say which servers answer at the addresses of a bus; empty: it has one address, or all do."""
    urls = url.split(",")
    names = await asyncio.gather(*(probe(one) for one in urls))
    if len(urls) == 1 or all(names):
        return ""
    return describe_answers([redacted_url(one) for one in urls], names)


def describe_answers(urls: Sequence[str], names: Sequence[str]) -> str:
    """Name the servers that answer and the addresses without one. `names`: empty for a server that does not answer."""
    up = [f"{name} at {url}" for url, name in zip(urls, names, strict=True) if name]
    away = [url for url, name in zip(urls, names, strict=True) if not name]
    head = f"{len(up)} of {len(urls)} servers of the bus answer"
    head += f" ({', '.join(up)})" if up else ""
    return f"{head}; start {'the one' if len(away) == 1 else 'those'} at {', '.join(away)}"
