"""Which path of the node a container's mount is, and how it stays that path until it is mounted.

Allowed are the task's own places and what is below them, or below a path that the operator allows, after all
links are resolved. A path is walked, without following any link, from a directory that no task can write. The
result is pinned: bound at a place that no task can reach, from where the engine mounts it. A link that a task
swaps in, before the check or after it, changes nothing. This holds for the mounts of every container and for
those of a job. The task's directory itself is never mounted: its owner could replace the places in it. Without
the right to mount (no root), or when the engine does not see the agent's mounts, the walked path itself is
given to the engine.

Mounted only where the operator allows it: the engine's socket, and what is in /dev. Never mounted: other
sockets, pipes and
devices, a folder with the engine's socket in it, anything of the agent's own.
"""

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from services.agent.drivers.docker.settings import PREFIX, DockerSettings
from services.agent.drivers.driver import DriverRun, StartRefused, directories_refused
from services.agent.drivers.isolation import kernel
from services.agent.safe_open import HANDLE, open_below
from shared.core.runtime.agent_messages import VolumeBind
from shared.jobspec.drivers.docker import TASK_DIRECTORY_TEXT, DockerMount

#: Where a task finds its own places inside.
TASK_MOUNT_POINTS = {"alloc": "/alloc", "local": "/local", "secrets": "/secrets"}
CONTAINER_DIRECTORIES = {
    "NOMAD_ALLOC_DIR": TASK_MOUNT_POINTS["alloc"],
    "NOMAD_TASK_DIR": TASK_MOUNT_POINTS["local"],
    "NOMAD_SECRETS_DIR": TASK_MOUNT_POINTS["secrets"],
}


class MountPins:
    """Places where checked paths are held for one start; `release` when the container has them."""

    def __init__(self, directory: Path, *, engine_pid: int = 0) -> None:
        self._directory = directory
        #: process whose mount namespace counts; 0: the agent's own.
        self._engine_pid = engine_pid
        self._made: list[Path] = []

    def hold(self, fd: int, path: Path, *, devices: bool = False) -> str:
        """Pin the file of `fd`; returns the path for the engine. `devices`: device files in it work."""
        if os.geteuid() != 0:
            return str(path)
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        place = self._directory / str(len(self._made))
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            place.mkdir(exist_ok=True)
        else:
            place.touch()
        try:
            flags = kernel.MS_BIND | kernel.MS_REC
            kernel.mount(f"/proc/self/fd/{fd}", str(place), flags=flags)
        except OSError:
            place.rmdir() if place.is_dir() else place.unlink()
            return str(path)
        self._made.append(place)
        # Set-uid files and devices that a container makes give no rights, where they are mounted again either.
        flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_NOSUID
        flags |= 0 if devices else kernel.MS_NODEV
        kernel.mount("", str(place), flags=flags)
        return str(place) if self._is_seen(place, fd) else str(path)

    def _is_seen(self, place: Path, fd: int) -> bool:
        """Return whether the engine sees the mount: not from a mount namespace that ours does not reach."""
        if not self._engine_pid:
            return True
        try:
            there = Path(f"/proc/{self._engine_pid}/root{place}").stat()
        except OSError:
            return False
        here = os.fstat(fd)
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def release(self) -> None:
        """Release all of them, also those of an earlier agent process."""
        with contextlib.suppress(FileNotFoundError):
            for place in self._directory.iterdir():
                with contextlib.suppress(OSError):
                    kernel.unmount(str(place))
                with contextlib.suppress(OSError):
                    place.rmdir() if place.is_dir() else place.unlink()
            with contextlib.suppress(OSError):
                self._directory.rmdir()


class MountSources:
    """Finds the sources of one task's bind mounts."""

    def __init__(
        self, settings: DockerSettings, data_dir: Path, run: DriverRun, pins: MountPins
    ) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._run = run
        self._pins = pins

    def own(self, path: Path) -> str:
        """Check and pin one of the task's own directories. Raises StartRefused."""
        try:
            fd = open_below(self._data_dir, path)
        except OSError as err:
            raise directories_refused(err) from err
        try:
            return self._pins.hold(fd, path)
        finally:
            os.close(fd)

    def volume(self, one: VolumeBind) -> str:
        """Check and pin a host volume, whose path the operator's settings gave. Raises StartRefused."""
        try:
            fd = open_below("/", one.path)
        except OSError as err:
            text = f"host volume {one.source!r}: {err.filename}: {err.strerror}"
            raise StartRefused(text, recoverable=True) from err
        try:
            return self._pins.hold(fd, Path(one.path))
        finally:
            os.close(fd)

    def source(self, mount: DockerMount) -> str:
        """Find, check and pin a source. Raises StartRefused."""
        if mount.is_engine_socket:
            return self._engine_socket(mount)
        if mount.is_device:
            return self._device(mount)
        own = self._own(mount)
        if own is not None:
            parts = own.relative_to(self._data_dir).parts
            with self._walked(mount, self._data_dir, parts, makes=mount.makes_source) as fd:
                return self._pins.hold(fd, own)
        real = Path(os.path.realpath(mount.source))
        for root in self._settings.roots:
            top = Path(os.path.realpath(root))
            if real.is_relative_to(top):
                self._check_outside(mount, real)
                with self._walked(mount, top, real.relative_to(top).parts, makes=False) as fd:
                    return self._pins.hold(fd, real)
        text = f"{mount.path}: {mount.source[:200]!r} is outside the allowed mount roots"
        raise StartRefused(f"{text} ({PREFIX}ALLOWED_ROOTS)", recoverable=False)

    def _engine_socket(self, mount: DockerMount) -> str:
        """The engine's socket, which the settings have allowed: the path is not one of a task."""
        socket = self._settings.socket
        if not self._settings.allow_engine_socket or socket is None:
            text = f"{mount.path}: mounting the engine's socket is not allowed"
            raise StartRefused(f"{text} ({PREFIX}ALLOW_ENGINE_SOCKET)", recoverable=False)
        real = os.path.realpath(mount.source)
        if real != os.path.realpath(socket):
            text = f"{mount.path}: {mount.source[:200]!r} is not the socket of this node's engine"
            raise StartRefused(text, recoverable=False)
        return real

    def _device(self, mount: DockerMount) -> str:
        """A path in the node's /dev, which the settings have allowed."""
        if not self._settings.allow_device_volumes:
            text = f"{mount.path}: mounting a path in /dev is not allowed"
            raise StartRefused(f"{text} ({PREFIX}ALLOW_DEVICE_VOLUMES)", recoverable=False)
        real = Path(os.path.realpath(mount.source))
        if not real.is_relative_to("/dev"):
            text = f"{mount.path}: {mount.source[:200]!r} leads out of /dev"
            raise StartRefused(text, recoverable=False)
        try:
            fd = open_below("/dev", real, flags=HANDLE)
        except OSError as err:
            text = f"{mount.path}: {mount.source[:200]!r} cannot be mounted: {err.strerror}"
            raise StartRefused(text, recoverable=False) from err
        try:
            if stat.S_ISLNK(os.fstat(fd).st_mode) or stat.S_ISSOCK(os.fstat(fd).st_mode):
                text = f"{mount.path}: {mount.source[:200]!r} is a link or a socket"
                raise StartRefused(text, recoverable=False)
            return self._pins.hold(fd, real, devices=True)
        finally:
            os.close(fd)

    def _own(self, mount: DockerMount) -> Path | None:
        """A path within the task's own places; None: it is another of the node's."""
        places, source = self._run.places, mount.source
        pure = PurePosixPath(os.path.normpath(source))
        if not pure.is_absolute():
            pure = PurePosixPath(os.path.normpath(f"/task/{source}"))
            tops = {"/alloc": places.shared, "/task": places.task}
        else:
            tops = {
                str(places.shared): places.shared,
                str(places.task): places.task,
                TASK_MOUNT_POINTS["alloc"]: places.shared,
                TASK_MOUNT_POINTS["local"]: places.task / "local",
                TASK_MOUNT_POINTS["secrets"]: places.task / "secrets",
            }
        for name, top in tops.items():
            if pure.is_relative_to(name):
                found = top / pure.relative_to(name)
                if found == places.task:
                    raise StartRefused(f"{mount.path}: {TASK_DIRECTORY_TEXT}", recoverable=False)
                return found
        if not source.startswith("/"):
            text = f"{source[:200]!r} escapes the task directory"
            raise StartRefused(text, recoverable=False)
        return None

    @contextlib.contextmanager
    def _walked(
        self, mount: DockerMount, root: Path, parts: Sequence[str], *, makes: bool
    ) -> Iterator[int]:
        """Open a path below a root with no link followed; checks what it is."""
        fd = -1
        try:
            relative = "/".join(parts)
            fd = open_below(root, relative, flags=HANDLE, make_mode=0o777 if makes else 0)
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
        """Refuse mounts that would give control of the engine or the agent."""
        socket = self._settings.socket
        if socket is not None:
            place = Path(os.path.realpath(socket))
            if place.is_relative_to(real):
                text = f"{mount.path}: mounting the Docker socket is not allowed"
                raise StartRefused(text, recoverable=False)
        data = Path(os.path.realpath(self._data_dir))
        if data.is_relative_to(real) or real.is_relative_to(data):
            text = f"{mount.path}: mounting the agent's data directory is not allowed"
            raise StartRefused(text, recoverable=False)
