"""Which path of the node a container's mount is, and how it stays that path until it is mounted.

Decides what may be mounted: below the task's own places, or below a path that the operator allows, after all links are
resolved. A path is walked from its root without following any link, and what was found is pinned: bound at a place that
no task can reach, from where the engine mounts it. So a link swapped in between check and mount changes nothing.
Without the right to mount (no root) the resolved path itself is given to the engine.

Never mounted: sockets, pipes and devices, a folder with the engine's socket in it, anything of the agent's own.
"""

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from services.agent.drivers.docker_settings import PREFIX, DockerSettings
from services.agent.drivers.driver import Run, StartRefused
from shared.jobspec.drivers.docker import DockerMount

#: mount(2): bind; umount2(2): detach, do not follow.
_MS_BIND, _MS_REC = 4096, 16384
_MNT_DETACH, _NOFOLLOW = 2, 8
_WALK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)
#: Where a task finds its own places inside.
INSIDE = {"alloc": "/alloc", "local": "/local", "secrets": "/secrets"}


class Pins:
    """Places where checked paths are held for one start; `release` when the container has them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: list[Path] = []

    def hold(self, fd: int, path: Path) -> str:
        """Pin what `fd` is; returns the path to give to the engine."""
        if os.geteuid() != 0:
            return str(path)
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        place = self._directory / str(len(self._made))
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            place.mkdir(exist_ok=True)
        else:
            place.touch()
        source = f"/proc/self/fd/{fd}".encode()
        if _libc.mount(source, bytes(place), None, _MS_BIND | _MS_REC, None) != 0:
            place.rmdir() if place.is_dir() else place.unlink()
            return str(path)
        self._made.append(place)
        return str(place)

    def release(self) -> None:
        """Let go of all of them, also of those that an earlier life left."""
        with contextlib.suppress(FileNotFoundError):
            for place in self._directory.iterdir():
                _libc.umount2(bytes(place), _MNT_DETACH | _NOFOLLOW)
                with contextlib.suppress(OSError):
                    place.rmdir() if place.is_dir() else place.unlink()
            with contextlib.suppress(OSError):
                self._directory.rmdir()


class Sources:
    """Finds the sources of one task's bind mounts."""

    def __init__(self, settings: DockerSettings, data_dir: Path, run: Run, pins: Pins) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._run = run
        self._pins = pins

    def source(self, mount: DockerMount) -> str:
        """Find, check and pin a source. Raises StartRefused."""
        found = self._own(mount.source)
        if found is not None:
            root, parts = found
            with self._walked(mount, root, parts, makes=mount.makes_source) as fd:
                return self._pins.hold(fd, root.joinpath(*parts))
        real = Path(os.path.realpath(mount.source))
        for root in self._settings.roots:
            top = Path(os.path.realpath(root))
            if real.is_relative_to(top):
                self._check_outside(mount, real)
                with self._walked(mount, top, real.relative_to(top).parts, makes=False) as fd:
                    return self._pins.hold(fd, real)
        text = f"{mount.path}: {mount.source[:200]!r} is not below a path that may be mounted"
        raise StartRefused(f"{text} ({PREFIX}ALLOWED_ROOTS)", recoverable=False)

    def _own(self, source: str) -> tuple[Path, tuple[str, ...]] | None:
        """A path within the task's own places, as (place, parts below it)."""
        places = self._run.places
        pure = PurePosixPath(os.path.normpath(source))
        if not pure.is_absolute():
            pure = PurePosixPath(os.path.normpath(f"/task/{source}"))
            tops = {"/alloc": places.shared, "/task": places.task}
        else:
            tops = {
                str(places.shared): places.shared,
                str(places.task): places.task,
                INSIDE["alloc"]: places.shared,
                INSIDE["local"]: places.task / "local",
                INSIDE["secrets"]: places.task / "secrets",
            }
        for name, top in tops.items():
            if pure.is_relative_to(name):
                return top, pure.relative_to(name).parts
        if not source.startswith("/"):
            text = f"{source[:200]!r} leaves the task's directory"
            raise StartRefused(text, recoverable=False)
        return None

    @contextlib.contextmanager
    def _walked(
        self, mount: DockerMount, root: Path, parts: Sequence[str], *, makes: bool
    ) -> Iterator[int]:
        """Open a path below a root with no link followed; checks what it is."""
        fd = -1
        try:
            fd = os.open(root, os.O_PATH | os.O_CLOEXEC)
            for part in parts:
                if makes:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o777, dir_fd=fd)
                below = os.open(part, _WALK, dir_fd=fd)
                os.close(fd)
                fd = below
            mode = os.fstat(fd).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                kind = "a link" if stat.S_ISLNK(mode) else "neither a file nor a directory"
                text = f"{mount.path}: {mount.source[:200]!r} is {kind}"
                raise StartRefused(text, recoverable=False)
            yield fd
        except OSError as err:
            text = f"{mount.path}: {mount.source[:200]!r} cannot be mounted: {err.strerror}"
            raise StartRefused(text, recoverable=False) from err
        finally:
            if fd >= 0:
                os.close(fd)

    def _check_outside(self, mount: DockerMount, real: Path) -> None:
        """Refuse what would give away the engine or the agent."""
        socket = self._settings.socket
        if socket is not None:
            place = Path(os.path.realpath(socket))
            if place.is_relative_to(real):
                text = f"{mount.path}: the engine's socket is the node itself"
                raise StartRefused(text, recoverable=False)
        data = Path(os.path.realpath(self._data_dir))
        if data.is_relative_to(real) or real.is_relative_to(data):
            text = f"{mount.path}: the agent's own directory is not mounted"
            raise StartRefused(text, recoverable=False)
