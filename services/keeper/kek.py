"""Where the key-encryption key (KEK) of a cluster comes from: a file in the keeper's folder, or a command.

As text it is 64 hex digits. A file is made where the key store is empty, and never again: another key would open none
of the entries. Nothing of a key, or of what a command printed, is in a log line or an error.
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

FILE_NAME = "kek"
_COMMAND_S = 10.0
_TEXT = re.compile(rb"[0-9a-f]{64}")


class KeyStoreFault(CaravanError):
    """The key store or its key-encryption key cannot be used, and waiting does not help; the text says what to do."""


class KekUnreachable(BusUnavailable):
    """The command that has the key-encryption key failed; it may succeed later."""


class KekSource(Protocol):
    """Has the key-encryption key."""

    async def read(self, *, may_create: bool) -> bytes:
        """Return the key. Raises KeyStoreFault, or KekUnreachable: try again."""
        ...


class KekFile:
    """`kek` in the keeper's folder, for its owner alone."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

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
        fresh = folder / f"{FILE_NAME}.{secrets.token_hex(8)}.new"
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
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class KekCommand:
    """A program that prints the key, such as a client of a key management service. It is run without a shell."""

    def __init__(self, command: str) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as err:
            raise ConfigInvalid(f"CARAVAN_KEEPER_KEK_COMMAND: {err}") from None
        if not self._words:
            raise ConfigInvalid("CARAVAN_KEEPER_KEK_COMMAND names no program")

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


def _key_of(text: bytes, where: str) -> bytes:
    found = text.strip()
    if not _TEXT.fullmatch(found):
        raise KeyStoreFault(f"{where} is not a key-encryption key of 64 hex digits")
    return bytes.fromhex(found.decode())
