"""Where the key-encryption key (KEK) of a cluster comes from: a file in the keeper's folder, or a command.

As text it is 64 hex digits. A file is made where the key store is empty, and never again: another key would open none
of the entries. The next KEK, which is to take its place (`rewrap.py`), is beside it: `kek.next`, or another command.
Nothing of a key, or of what a command printed, is in a log line or an error.
"""

import asyncio
import contextlib
import os
import re
import secrets
import shlex
from pathlib import Path
from typing import Protocol

from shared.errors import BusUnavailable, CaravanError, ConfigInvalid

FILE_NAME, NEXT_NAME = "kek", "kek.next"
_COMMAND_S = 10.0
_TEXT = re.compile(rb"[0-9a-f]{64}")


class KeyStoreFault(CaravanError):
    """The key store or its key-encryption key cannot be used, and waiting does not help; the text says what to do."""


class KeyStoreReplaced(KeyStoreFault):
    """The key store is not the one any more that was opened: it was wrapped anew, or is gone."""


class KekUnreachable(BusUnavailable):
    """The command that has the key-encryption key failed; it may succeed later."""


class KekSource(Protocol):
    """Has the key-encryption key."""

    async def read(self, *, may_create: bool) -> bytes:
        """Return the key. Raises KeyStoreFault, or KekUnreachable: try again."""
        ...


class NextKek(Protocol):
    """Has the key that is to take the place of the present one."""

    async def read_next(self) -> bytes | None:
        """Return the key; None: there is none. Raises KeyStoreFault, or KekUnreachable: try again."""
        ...

    def take_over(self) -> None:
        """Make it the present one: the former opens nothing any more. Raises KeyStoreFault."""
        ...


class KekFile:
    """`kek` in the keeper's folder, for its owner alone. `name`: another file there."""

    def __init__(self, folder: Path, name: str = FILE_NAME) -> None:
        self._path = folder / name

    async def read(self, *, may_create: bool) -> bytes:
        """Return the key, a new one where there is no file and `may_create`. Raises KeyStoreFault."""
        try:
            if may_create and not self._path.exists():
                self._make()
            return self._read()
        except FileNotFoundError:
            raise KeyStoreFault(
                f"{self._path} is missing, and stream KEYS has keys that were wrapped by it: copy the file of the "
                "machine that made it, or restore it from a backup"
            ) from None
        except OSError as err:
            raise KeyStoreFault(f"{self._path} cannot be used: {err.strerror}") from err

    def _read(self) -> bytes:
        with self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise KeyStoreFault(
                    f"{self._path} can be read by other users: chmod 600 {self._path}"
                )
            return _key_of(file.read(1024), str(self._path))

    def _make(self) -> None:
        """Write a new key, durable before it has a name; of two who do so at once the first one's stays."""
        folder = self._path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = folder / f"{self._path.name}.{secrets.token_hex(8)}.new"
        try:
            with os.fdopen(
                os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as out:
                out.write(secrets.token_hex(32).encode() + b"\n")
                out.flush()
                os.fsync(out.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(fresh, self._path)
        finally:
            fresh.unlink(missing_ok=True)
        _sync(folder)


class NextKekFile:
    """`kek.next` in the keeper's folder; it takes over by taking the name `kek`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = KekFile(folder, NEXT_NAME)

    async def read_next(self) -> bytes | None:
        """Return the key; None: there is no file. Raises KeyStoreFault."""
        if not (self._folder / NEXT_NAME).exists():
            return None
        return await self._file.read(may_create=False)

    async def make(self) -> bytes:
        """Return the key, a new one where there is no file. Raises KeyStoreFault."""
        return await self._file.read(may_create=True)

    def take_over(self) -> None:
        """Replace `kek`. Another process of this machine may have done so."""
        try:
            with contextlib.suppress(FileNotFoundError):
                (self._folder / NEXT_NAME).replace(self._folder / FILE_NAME)
                _sync(self._folder)
        except OSError as err:
            text = f"{self._folder / NEXT_NAME} cannot be renamed to {FILE_NAME}: {err.strerror}"
            raise KeyStoreFault(text) from err


def _sync(folder: Path) -> None:
    """Make names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class KekCommand:
    """A program that prints the key, such as a client of a key management service. It is run without a shell."""

    def __init__(self, command: str, setting: str = "CARAVAN_KEEPER_KEK_COMMAND") -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as err:
            raise ConfigInvalid(f"{setting}: {err}") from None
        if not self._words:
            raise ConfigInvalid(f"{setting} names no program")

    async def read(self, *, may_create: bool) -> bytes:
        """Run the program and return the key. Raises KeyStoreFault, KekUnreachable."""
        del may_create
        name = self._words[0]
        try:
            child = await asyncio.create_subprocess_exec(
                *self._words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as err:
            raise KeyStoreFault(
                f"the command for the KEK, {name}, cannot be run: {err.strerror}"
            ) from None
        try:
            async with asyncio.timeout(_COMMAND_S):
                printed, _ = await child.communicate()
        except TimeoutError:
            raise KekUnreachable(f"{name} did not print the KEK within {_COMMAND_S:g} s") from None
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        if child.returncode:
            raise KekUnreachable(f"{name}, which prints the KEK, ended with {child.returncode}")
        return _key_of(printed, f"what {name} prints")


class NextKekCommand:
    """A program that prints the next key: the operator makes it the present one, in the settings."""

    def __init__(self, command: str) -> None:
        self._command = KekCommand(command, "CARAVAN_KEEPER_NEXT_KEK_COMMAND")

    async def read_next(self) -> bytes | None:
        """Run the program and return the key. Raises KeyStoreFault, KekUnreachable."""
        return await self._command.read(may_create=False)

    def take_over(self) -> None:
        """Do nothing: settings are the operator's."""


def _key_of(text: bytes, where: str) -> bytes:
    found = text.strip()
    if not _TEXT.fullmatch(found):
        raise KeyStoreFault(f"{where} is not a key-encryption key of 64 hex digits")
    return bytes.fromhex(found.decode())
