"""A key store's entries in memory, for tests of what is above them."""

from collections.abc import Callable
from fnmatch import fnmatch

from services.keeper.kek import KeyStoreFault
from services.keeper.key_entries import KeyEntry
from shared.errors import BusUnavailable

KEK = bytes(range(32))


class MemoryEntries:
    """Entries as the bus keeps them. `away`: so many more uses fail."""

    #: stands before each use, for what happens meanwhile.
    meanwhile: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.made = False
        self.by_name: dict[str, bytes] = {}
        self.seq_of: dict[str, int] = {}
        self.away = 0
        self.uses = 0
        self._seq = 0

    def _use(self) -> None:
        self.uses += 1
        if self.meanwhile is not None:
            self.meanwhile()
        if self.away:
            self.away -= 1
            raise BusUnavailable("away")

    async def is_there(self) -> bool:
        self._use()
        return self.made

    async def make(self) -> None:
        self._use()
        self.made = True

    async def read_all(self) -> list[KeyEntry]:
        self._use()
        return [KeyEntry(name, self.seq_of[name], body) for name, body in self.by_name.items()]

    async def count(self) -> int:
        self._use()
        return len(self.by_name)

    async def find(self, name: str) -> KeyEntry | None:
        self._use()
        body = self.by_name.get(name)
        return None if body is None else KeyEntry(name, self.seq_of[name], body)

    async def create(self, name: str, body: bytes, unless: str = "", after: int = 0) -> bool:
        self._use()
        newer = [one for one in self.by_name if self.seq_of[one] > after]
        taken = name in self.by_name or any(fnmatch(one, unless) for one in newer)
        if not taken:
            self._seq += 1
            self.by_name[name], self.seq_of[name] = body, self._seq
        return not taken

    async def erase(self, name: str) -> None:
        self._use()
        self.by_name.pop(name, None)


class FixedKek:
    """A key-encryption key that is there, or is made when it may be."""

    def __init__(self, key: bytes = KEK, *, is_there: bool = True) -> None:
        self.key = key
        self.is_there = is_there

    async def read(self, *, may_create: bool) -> bytes:
        self.is_there |= may_create
        if not self.is_there:
            raise KeyStoreFault("kek is missing")
        return self.key


class FixedNextKek:
    """A next key-encryption key; `take_over` puts it in the place of the present one."""

    def __init__(self, present: FixedKek, key: bytes | None = None) -> None:
        self._present = present
        self.key = key

    async def read_next(self) -> bytes | None:
        return self.key

    def take_over(self) -> None:
        assert self.key is not None
        self._present.key, self.key = self.key, None
