"""`caravan alloc fs`: files of an allocation, read by the node's agent."""

import asyncio

import msgspec

from schemas.node_rpc import FileLine, FilePart, FilesAnswer, FilesAsk
from services.cli.runtime.bus_client import with_bus
from services.cli.runtime.node_client import JSON_BYTES_MAX, find_alloc, request_alloc, request_node
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.connection.public_client import Client
from shared.display.formats import format_local_time, format_size


class FileListResult(msgspec.Struct, frozen=True):
    """`alloc fs ls --json`."""

    allocation: str
    path: str
    files: tuple[FileLine, ...]
    total: int


class FileStatResult(msgspec.Struct, frozen=True):
    """`alloc fs stat --json`."""

    allocation: str
    path: str
    file: FileLine


class FileContentResult(msgspec.Struct, frozen=True):
    """`alloc fs cat --json`."""

    allocation: str
    path: str
    offset: int
    size: int
    text: str


def ls(out: CommandOutput, *, alloc_id: str, path: str, limit: int) -> int:
    """List a directory."""

    async def work(client: Client) -> tuple[str, FilesAnswer]:
        one = (await find_alloc(client, alloc_id)).allocation
        ask = FilesAsk(alloc_id=one.id, path=path, limit=limit)
        found = await request_node(client, one.node, "fs_list", ask, answer=FilesAnswer)
        files = found.files
        while files and len(files) < min(limit, found.total):
            more = msgspec.structs.replace(ask, offset=len(files), limit=limit - len(files))
            page = await request_node(client, one.node, "fs_list", more, answer=FilesAnswer)
            if not page.files:
                break
            files += page.files
        return one.id, msgspec.structs.replace(found, files=files)

    shown, found = with_bus(work)
    out.result(FileListResult(shown, path, found.files, found.total))
    _table(out, found.files)
    if len(found.files) < found.total:
        out.line(f"\n{len(found.files)} of {found.total} entries; --limit shows more", "dim")
    return 0


def stat(out: CommandOutput, *, alloc_id: str, path: str) -> int:
    """Describe a file."""
    ask = FilesAsk(alloc_id="", path=path)
    one, found = with_bus(
        lambda client: request_alloc(client, alloc_id, "fs_stat", ask, answer=FilesAnswer)
    )
    out.result(FileStatResult(one.id, path, found.files[0]))
    _table(out, found.files)
    return 0


def cat(out: CommandOutput, *, alloc_id: str, path: str, offset: int, limit: int) -> int:
    """Print a file, or a part of it."""
    if offset < 0 or limit < 0:
        raise CliError("usage", "--offset and --limit must not be negative")

    async def work(client: Client) -> tuple[str, int, bytes]:
        one = (await find_alloc(client, alloc_id)).allocation
        at, text, size = offset, b"", 0
        most = min(limit or JSON_BYTES_MAX, JSON_BYTES_MAX) if out.is_json else limit
        while not most or at - offset < most:
            left = most - (at - offset) if most else 0
            ask = FilesAsk(alloc_id=one.id, path=path, offset=at, limit=left)
            part = await request_node(client, one.node, "fs_read", ask, answer=FilePart)
            size = part.size
            if not part.data:
                break
            at += len(part.data)
            if out.is_json:
                text += part.data
            else:
                await asyncio.to_thread(out.write, part.data)
        return one.id, size, text

    shown, size, text = with_bus(work)
    out.result(FileContentResult(shown, path, offset, size, text.decode("utf-8", "replace")))
    return 0


def _table(out: CommandOutput, files: tuple[FileLine, ...]) -> None:
    rows = [
        (
            one.mode,
            format_size(one.size),
            format_local_time(one.modified_ns),
            f"{one.name}/" if one.kind == "directory" else one.name,
        )
        for one in files
    ]
    out.table("MODE|SIZE>|MODIFIED|NAME", rows)
