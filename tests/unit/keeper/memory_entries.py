"""A key store's entries in memory, for tests of what is above them."""

from fnmatch import fnmatch

from services.keeper.kek import KeyStoreFault
from services.keeper.key_entries import KeyEntry
from shared.errors import BusUnavailable

KEK = bytes(range(32))


class MemoryEntries:
    """Entries as the bus keeps them. `away`: so many more uses fail."""

    def __init__(self) -> None:
        self.made = False
        self.by_name: dict[str, bytes] = {}
        self.seq_of: dict[str, int] = {}
        self.away = 0
        self.uses = 0

    def _use(self) -> None:
        self.uses += 1
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

    async def read(self, name: str) -> bytes | None:
        self._use()
        return self.by_name.get(name)

    async def create(self, name: str, body: bytes, unless: str = "") -> bool:
        self._use()
        taken = name in self.by_name or any(fnmatch(one, unless) for one in self.by_name)
        if not taken:
            self.by_name[name] = body
            self.seq_of[name] = max(self.seq_of.values(), default=0) + 1
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
