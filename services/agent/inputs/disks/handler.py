"""Fetches the data of a replaced allocation from its node, once for all tasks of the new one, before they start.

Best effort, as in Nomad: whatever goes wrong leaves an empty disk and an event that says why, never a failed task. The
archive is unpacked by a helper process into a place of its own (`staging.py`), and moved in when it is whole.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec
import structlog

from schemas.base import MIB
from schemas.disks import DiskSourceAnswer
from services.agent.disk_source import ENDED
from services.agent.executor.data_dir import DataDir
from services.agent.inputs.disks.peers import DiskPeers
from services.agent.inputs.disks.staging import DiskStaging
from services.agent.inputs.disks.unpack_order import DiskRefused, UnpackAnswer, UnpackOrder
from services.agent.inputs.forked_helpers import Helper, Helpers
from services.agent.inputs.helper_rights import UNPRIVILEGED_ID
from services.agent.inputs.input_handler import SETUP_FAILURE, InputContext
from shared.core.runtime.agent_messages import TaskInput
from shared.core.runtime.input_specs import DISK, DiskInput
from shared.errors import CommandInvalid
from shared.protocol.id_tokens import id_token

#: Kind of the task events.
EVENT = "Disk Migration"
#: Between two questions.
POLL_S = 1.0
#: An agent that does not give the data, although the log says that its node is ready, is asked so long.
PATIENCE_S = 300.0
#: The log may know an allocation later than its node: it is asked so long.
GRACE_S = 30.0
#: All of one copy, and what the helper may still do when it has all bytes.
COPY_S = 3_600.0
UNPACK_S = 300.0
FILES_MAX = 500_000
_LINE_BYTES_MAX = 1 << 16
_HELPER = "from services.agent.inputs.disks.unpack_helper import main; main()"
_log = structlog.get_logger()


class DiskHandler:
    """Prepares the disks of one data directory. `needs_landlock`: unpack nothing where the kernel cannot confine it."""

    kind = DISK
    event_kind = SETUP_FAILURE
    begin_kind = ""
    #: before everything that writes into `local/`.
    stage = -1
    timeout_s: float | None = None

    def __init__(
        self,
        home: DataDir,
        peers: DiskPeers,
        *,
        needs_landlock: bool = False,
        poll_s: float = POLL_S,
    ) -> None:
        self._home = home
        self._peers = peers
        self._needs_landlock = needs_landlock
        self._poll_s = poll_s
        self._helpers = Helpers(_HELPER)
        #: one fetches at a time for each allocation; the other tasks find it done.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def prepare(self, about: InputContext, wanted: TaskInput) -> bytes:
        """Have the disk filled, or left empty; returns how it went."""
        spec = msgspec.json.decode(wanted.spec, type=DiskInput)
        staging = DiskStaging(self._home.top, about.alloc_id)
        async with self._locks.setdefault(about.alloc_id, asyncio.Lock()):
            outcome = await asyncio.to_thread(staging.outcome)
            if outcome is None:
                outcome = await self._fill(about, spec, staging)
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(staging.finish, outcome)
        if outcome:
            about.note(EVENT, outcome)
        return outcome.encode()

    def close(self) -> None:
        """End the helpers."""
        self._helpers.close()

    # ---- inside ----

    async def _fill(self, about: InputContext, spec: DiskInput, staging: DiskStaging) -> str:
        """Fetch and move in; returns the text of the event, empty where the data was on this node."""
        before = self._home.top / "alloc" / id_token(spec.previous)
        if await asyncio.to_thread(before.is_dir):
            # It was moved when the directories were made.
            return ""
        said = f"data of allocation {spec.previous}"
        try:
            if not await asyncio.to_thread(staging.is_whole):
                said += await self._fetch(about, spec, staging)
            await asyncio.to_thread(staging.move_in, self._parts(about.alloc_id, spec))
        except (DiskRefused, OSError) as err:
            reason = str(err) if isinstance(err, DiskRefused) else err.strerror or repr(err)
            _log.warning("disk.empty", alloc=about.alloc_id, previous=spec.previous, reason=reason)
            return f"starts with an empty disk: {reason}"
        return said

    def _parts(self, alloc_id: str, spec: DiskInput) -> dict[str, Path]:
        places = [self._home.places(alloc_id, one) for one in spec.tasks]
        found = {f"{one.task.name}/local": one.task / "local" for one in places}
        return {"alloc/data": places[0].shared / "data", **found}

    async def _fetch(self, about: InputContext, spec: DiskInput, staging: DiskStaging) -> str:
        """Fetch and unpack the data; returns what it was, for the event. Raises DiskRefused, OSError."""
        loop = asyncio.get_running_loop()
        ends_s, said = loop.time() + PATIENCE_S, ""
        while True:
            source = await self._ended(about, spec)
            try:
                return await self._copy(about, spec, staging, source.previous_node)
            except CommandInvalid as err:
                text = f"node {source.previous_node}: {err.message}"
                if err.code != "unavailable" or loop.time() >= ends_s:
                    raise DiskRefused(text) from err
                if text != said:
                    about.note(EVENT, f"waits: {text}")
                    said = text
            finally:
                await asyncio.to_thread(staging.clear)
            await asyncio.sleep(self._poll_s)

    async def _ended(self, about: InputContext, spec: DiskInput) -> DiskSourceAnswer:
        """Wait until the replaced allocation has ended, as long as its node is ready. Raises DiskRefused."""
        grace_s = asyncio.get_running_loop().time() + GRACE_S
        said = ""
        while True:
            try:
                found = await self._peers.source(about.alloc_id)
                wait = _judged(found, spec.previous)
            except CommandInvalid as err:
                # Without the bus it waits: data that is there must not be lost for that.
                wait = f"the log cannot be asked: {err.message}"
                is_late = asyncio.get_running_loop().time() >= grace_s
                if err.code != "unavailable" and is_late:
                    raise DiskRefused(err.message) from err
            else:
                if not wait:
                    return found
            if wait != said:
                about.note(EVENT, f"waits: {wait}")
                said = wait
            await asyncio.sleep(self._poll_s)

    async def _copy(
        self, about: InputContext, spec: DiskInput, staging: DiskStaging, node_id: str
    ) -> str:
        """Copy the archive into the staging place. Raises CommandInvalid of the other node, DiskRefused, OSError."""
        await asyncio.to_thread(staging.begin)
        archive = self._peers.archive(node_id, about.alloc_id, spec.previous, spec.tasks)
        try:
            async with asyncio.timeout(COPY_S):
                answer = await self._unpack(staging, archive, spec.size_mib * MIB)
        except TimeoutError as err:
            raise DiskRefused("it was not copied and unpacked in time") from err
        if answer.reason:
            raise DiskRefused(answer.reason)
        await asyncio.to_thread(staging.complete)
        return f" from node {node_id}: {answer.bytes} bytes, {answer.files} files and directories"

    async def _unpack(
        self, staging: DiskStaging, archive: AsyncGenerator[bytes, None], bytes_max: int
    ) -> UnpackAnswer:
        """Run a helper over an archive. Raises what the archive raises."""
        is_root = os.geteuid() == 0
        if is_root:
            os.chown(staging.work, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
        source, target = os.pipe()
        directory = os.open(staging.work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            pipe = os.fdopen(target, "wb", buffering=0)
            async with self._helpers.begin(_LINE_BYTES_MAX, (directory, source)) as helper:
                os.close(source)
                source = -1
                order = UnpackOrder(
                    bytes_max=bytes_max, files_max=FILES_MAX, needs_landlock=self._needs_landlock
                )
                return await _answered(helper, order, archive, pipe)
        finally:
            os.close(directory)
            if source >= 0:
                os.close(source)
            if is_root:
                # From here on no process of that user changes what was made.
                os.chown(staging.work, 0, 0)


def _judged(found: DiskSourceAnswer, previous: str) -> str:
    """Say what a replaced allocation is waited for; empty: it has ended. Raises DiskRefused."""
    if found.previous != previous or not found.previous_node:
        raise DiskRefused(f"the log has no record of allocation {previous} any more")
    if found.node_id == found.previous_node:
        raise DiskRefused(f"allocation {previous} was on this node, and its directory is gone")
    where = f"node {found.previous_node}"
    if found.previous_node_status != "ready":
        raise DiskRefused(f"{where} is {found.previous_node_status or 'unknown'}")
    if found.previous_status in ENDED:
        return ""
    if found.previous_status not in ("pending", "running"):
        raise DiskRefused(f"allocation {previous} on {where} is {found.previous_status}")
    return f"allocation {previous} on {where} has not ended"


async def _answered(
    helper: Helper, order: UnpackOrder, archive: AsyncGenerator[bytes, None], pipe: object
) -> UnpackAnswer:
    """Pump an archive through a helper, and return what it answers."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    answering = asyncio.ensure_future(helper.ask(msgspec.json.encode(order)))
    try:
        # A helper that refused reads no more: its answer says why.
        with contextlib.suppress(ConnectionError):
            async for part in archive:
                writer.write(part)
                await writer.drain()
                if answering.done():
                    break
        transport.close()
        async with asyncio.timeout(UNPACK_S):
            line = await answering
    finally:
        # One that is closing ends with what it holds, or with the helper.
        if not transport.is_closing():
            transport.abort()
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        await archive.aclose()
    try:
        return msgspec.json.decode(line, type=UnpackAnswer)
    except msgspec.MsgspecError:
        text = f"the helper that unpacks ended: {await helper.last_words()}"
        raise DiskRefused(text) from None
