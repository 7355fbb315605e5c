"""`caravan alloc fs`: what is in the directory of an allocation, from the agent that has it."""

import asyncio
import sys
from datetime import UTC, datetime

import msgspec

from schemas.hands import FileLine, FilePart, FilesAnswer, FilesAsk
from services.cli.asking import with_bus
from services.cli.handing import alloc_of, ask_node
from services.cli.output import CliError, Column, Output
from shared.bus.client import Client

#: What `--json` holds of a file at the most.
_TEXT_BYTES_MAX = 1 << 20


def ls(out: Output, *, alloc_id: str, path: str, limit: int) -> int:
    """List a directory."""

    async def work(client: Client) -> tuple[str, FilesAnswer]:
        one = (await alloc_of(client, alloc_id)).allocation
        ask = FilesAsk(alloc_id=one.id, path=path, limit=limit)
        found = await ask_node(client, one.node, "fs_list", ask, answer=FilesAnswer)
        files = found.files
        while files and len(files) < min(limit, found.total):
            more = msgspec.structs.replace(ask, offset=len(files), limit=limit - len(files))
            page = await ask_node(client, one.node, "fs_list", more, answer=FilesAnswer)
            if not page.files:
                break
            files += page.files
        return one.id, msgspec.structs.replace(found, files=files)

    shown, found = with_bus(work)
    result = {"allocation": shown, "path": path, "files": found.files, "total": found.total}
    out.result(result)
    _table(out, found.files)
    if len(found.files) < found.total:
        out.line(f"\n{len(found.files)} of {found.total} entries; --limit shows more", "dim")
    return 0


def stat(out: Output, *, alloc_id: str, path: str) -> int:
    """Describe a file."""

    async def work(client: Client) -> tuple[str, FilesAnswer]:
        one = (await alloc_of(client, alloc_id)).allocation
        ask = FilesAsk(alloc_id=one.id, path=path)
        return one.id, await ask_node(client, one.node, "fs_stat", ask, answer=FilesAnswer)

    shown, found = with_bus(work)
    out.result({"allocation": shown, "path": path, "file": found.files[0]})
    _table(out, found.files)
    return 0


def cat(out: Output, *, alloc_id: str, path: str, offset: int, limit: int) -> int:
    """Print a file, or a part of it."""
    if offset < 0 or limit < 0:
        raise CliError("usage", "--offset and --limit count bytes from 0")

    async def work(client: Client) -> tuple[str, int, bytes]:
        one = (await alloc_of(client, alloc_id)).allocation
        at, text, size = offset, b"", 0
        most = min(limit or _TEXT_BYTES_MAX, _TEXT_BYTES_MAX) if out.is_json else limit
        while not most or at - offset < most:
            left = most - (at - offset) if most else 0
            ask = FilesAsk(alloc_id=one.id, path=path, offset=at, limit=left)
            part = await ask_node(client, one.node, "fs_read", ask, answer=FilePart)
            size = part.size
            if not part.data:
                break
            at += len(part.data)
            if out.is_json:
                text += part.data
            else:
                await asyncio.to_thread(_write, part.data)
        return one.id, size, text

    shown, size, text = with_bus(work)
    out.result(
        {
            "allocation": shown,
            "path": path,
            "offset": offset,
            "size": size,
            "text": text.decode("utf-8", "replace"),
        }
    )
    return 0


def _table(out: Output, files: tuple[FileLine, ...]) -> None:
    columns = [Column("MODE"), Column("SIZE", right=True), Column("MODIFIED", 1), Column("NAME")]
    rows = [
        (
            one.mode,
            one.size,
            datetime.fromtimestamp(one.modified_ns / 1e9, UTC).astimezone().strftime("%F %T"),
            f"{one.name}/" if one.kind == "directory" else one.name,
        )
        for one in files
    ]
    out.table(columns, rows)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
