"""Artifacts of tasks: a helper process fetches and unpacks each in a fresh directory, the agent moves the result in.

Decides where a destination is and who owns it. Bytes of others are read by the helper alone (fetch_helper.py).
"""

import asyncio
import contextlib
import os
import pwd
import shutil
import tempfile
from pathlib import Path
from posixpath import normpath

import msgspec

from services.agent.drivers.driver import split_list
from services.agent.executor.data_dir import TaskDirs
from services.agent.inputs.artifacts.cache import ArtifactCache
from services.agent.inputs.artifacts.fetch_order import FetchAnswer, FetchOrder, FetchRefused
from services.agent.inputs.artifacts.move_in import move_in
from services.agent.inputs.artifacts.settings import PREFIX, ArtifactSettings
from services.agent.inputs.forked_helpers import Helpers
from services.agent.inputs.helper_rights import UNPRIVILEGED_ID
from services.agent.inputs.input_handler import InputContext, InputFailed
from services.agent.inputs.places import resolve_place
from services.agent.safe_open import is_swapped, open_below, open_regular
from shared.core.runtime.agent_messages import TaskInput
from shared.core.runtime.input_specs import ARTIFACT, ArtifactInput
from shared.jobspec.artifact_source import ArtifactSource, read_source

#: Nomad's word.
EVENT = "Failed Artifact Download"
_HELPER = "from services.agent.inputs.artifacts.fetch_helper import main; main()"
#: An answer holds a reason of a few hundred characters.
_LINE_BYTES_MAX = 1 << 16
#: What the helper's limits do not end in time is ended by the runner.
_EXTRA_S = 60.0


class ArtifactHandler:
    """Prepares artifacts of one data directory. `refused_hosts`: those of the bus."""

    kind = ARTIFACT
    event_kind = EVENT
    begin_kind = "Downloading Artifacts"
    stage = 0

    def __init__(
        self, top: Path, settings: ArtifactSettings, *, refused_hosts: tuple[str, ...] = ()
    ) -> None:
        self._top = top
        self._settings = settings
        self._refused_hosts = refused_hosts
        self.timeout_s: float | None = settings.timeout_s + _EXTRA_S
        self._cache = ArtifactCache(top / "artifacts", settings.cache_mib << 20)
        self._helpers = Helpers(_HELPER)
        self._work = top / "fetch"
        # What an earlier life left is of no use: each fetch begins in a fresh directory.
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(mode=0o711)

    async def prepare(self, about: InputContext, wanted: TaskInput) -> bytes:
        """Fetch one artifact, and move it into its destination."""
        spec = msgspec.json.decode(wanted.spec, type=ArtifactInput)
        source = _source(spec)
        try:
            destination = _destination(about.places, spec.destination)
            owner = _owner(spec, about.launch.user)
            work = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=self._work))
            try:
                target = destination.parent if spec.mode == "file" else destination
                if target == about.places.shared.parent:
                    raise FetchRefused("destination is beside the directories of the tasks")
                answer = await self._fetch(work, spec, source, destination.name)
                await asyncio.to_thread(move_in, self._top, work / "out", target, owner=owner)
            finally:
                await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)
        except FetchRefused as err:
            text = f"{source.shown()}: {err}"
            raise InputFailed(text, recoverable=err.recoverable, kind=EVENT) from err
        except OSError as err:
            text = f"{source.shown()}: {err.filename or spec.destination}: {err.strerror or err}"
            raise InputFailed(text, recoverable=not is_swapped(err), kind=EVENT) from err
        return f"{source.url} {answer.sha256}".encode()

    def close(self) -> None:
        """End the helpers."""
        self._helpers.close()

    # ---- inside ----

    async def _fetch(
        self, work: Path, spec: ArtifactInput, source: ArtifactSource, file_name: str
    ) -> FetchAnswer:
        checksum = source.options.get("checksum", "")
        is_remote = source.getter != "file"
        content = self._cache.open(checksum) if is_remote else self._local_file(source)
        order = FetchOrder(
            source=spec.source,
            options=spec.options,
            headers=spec.headers,
            mode=spec.mode,
            insecure=spec.insecure,
            file_name=file_name,
            needs_landlock=self._settings.require == "landlock",
            allow=split_list(self._settings.allow),
            refused_hosts=self._refused_hosts,
            bytes_max=self._settings.max_bytes,
            files_max=self._settings.max_files,
            stall_s=self._settings.stall_s,
        )
        try:
            if content < 0 or not is_remote:
                answer = await self._run_helper(work, order, content)
            else:
                with contextlib.suppress(FetchRefused):
                    return await self._run_helper(work, order, content)
                # A damaged file of the cache, or an archive that cannot be unpacked from there either.
                self._cache.drop(checksum)
                await asyncio.to_thread(_empty, work)
                answer = await self._run_helper(work, order, -1)
        finally:
            if content >= 0:
                os.close(content)
        if is_remote and checksum:
            await asyncio.to_thread(self._store, checksum, work)
        return answer

    async def _run_helper(self, work: Path, order: FetchOrder, content: int) -> FetchAnswer:
        """Run one helper to its end. Raises FetchRefused with its reason; a cancelled one is killed."""
        is_root = os.geteuid() == 0
        if is_root:
            os.chown(work, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
        directory = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fds = (directory, content) if content >= 0 else (directory,)
        try:
            async with self._helpers.begin(_LINE_BYTES_MAX, fds) as helper:
                line = await helper.ask(msgspec.json.encode(order))
                try:
                    answer = msgspec.json.decode(line, type=FetchAnswer)
                except ValueError:
                    text = f"the fetch helper ended: {await helper.last_words()}"
                    raise FetchRefused(text, recoverable=True) from None
        finally:
            os.close(directory)
            if is_root:
                # From here on no process of that user changes what was made.
                os.chown(work, 0, 0)
        if answer.reason:
            raise FetchRefused(answer.reason, recoverable=answer.recoverable)
        return answer

    def _store(self, checksum: str, work: Path) -> None:
        fd = open_below(self._top, work)
        try:
            raw = open_regular("raw", fd, os.O_RDONLY)
            try:
                self._cache.store(checksum, raw)
            finally:
                os.close(raw)
        except OSError:
            return
        finally:
            os.close(fd)

    def _local_file(self, source: ArtifactSource) -> int:
        folder = self._settings.files
        if not folder:
            raise FetchRefused(
                f"files of the node are allowed by its operator alone ({PREFIX}FILES)"
            )
        path = normpath(source.url)
        if not path.startswith(folder.rstrip("/") + "/"):
            raise FetchRefused(f"the operator allows files below {folder} alone")
        try:
            directory = open_below(folder, Path(path).parent)
            try:
                return open_regular(Path(path).name, directory, os.O_RDONLY)
            finally:
                os.close(directory)
        except OSError as err:
            raise FetchRefused(err.strerror or str(err), recoverable=not is_swapped(err)) from err


def _empty(work: Path) -> None:
    for one in work.iterdir():
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one)
        else:
            one.unlink()


def _source(spec: ArtifactInput) -> ArtifactSource:
    try:
        return read_source(spec.source, spec.options)
    except ValueError as err:
        raise InputFailed(f"source {err}", recoverable=False, kind=EVENT) from err


def _destination(places: TaskDirs, text: str) -> Path:
    """Find a destination on this node. Raises FetchRefused where it leaves the allocation."""
    try:
        return resolve_place(places, text)
    except ValueError as err:
        raise FetchRefused(f"destination {err}") from err


def _owner(spec: ArtifactInput, user: str) -> tuple[int, int] | None:
    """Say whom the result is given to; None: who made it has it already. Raises FetchRefused."""
    is_root = os.geteuid() == 0
    if not spec.chown or not user:
        return (0, 0) if is_root else None
    try:
        found = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    except KeyError as err:
        raise FetchRefused(f"chown: user {user[:40]!r} is not known on this node") from err
    if not is_root and found.pw_uid != os.geteuid():
        raise FetchRefused("chown to another user needs an agent that runs as root")
    return found.pw_uid, found.pw_gid
