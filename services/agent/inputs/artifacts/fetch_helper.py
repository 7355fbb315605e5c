"""The fetch helper: one process for one artifact, which gives up its rights before it reads what others wrote.

Forked by a process that loads all modules (inputs/forking.py); a FetchOrder comes over its socket with a descriptor of
its own empty directory, and it answers with a FetchAnswer. What it makes is checked again by the agent, which moves it
in (move_in.py).
"""

import codecs
import hashlib
import os
import resource
import shutil
import socket
import ssl
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import msgspec
import urllib3

from services.agent.drivers.isolation import landlock
from services.agent.inputs.artifacts.addresses import AddressRules
from services.agent.inputs.artifacts.aws_signature import AwsKeys, aws_region, signed_headers
from services.agent.inputs.artifacts.fetch_order import FetchAnswer, FetchOrder, FetchRefused
from services.agent.inputs.artifacts.http_fetch import CheckedHttp, download
from services.agent.inputs.artifacts.unpack import Unpacker
from services.agent.inputs.forking import serve
from services.agent.inputs.helper_rights import UNPRIVILEGED_ID, give_up_rights
from services.agent.safe_open import open_within
from shared.jobspec.artifact_source import (
    CHECKSUM_CHARS,
    ArtifactSource,
    checksum_error,
    read_source,
)

try:
    from services.agent.inputs.artifacts import git_fetch
except ModuleNotFoundError:  # Without the extra `git`.
    git_fetch = None  # type: ignore[assignment]

#: What name resolution, certificates and late imports read.
READABLE = (
    *("/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/gai.conf"),
    *("/etc/services", "/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/run/systemd/resolve"),
    *(
        "/lib",
        "/lib64",
        "/usr/lib",
        "/usr/lib64",
        "/usr/share/ca-certificates",
        "/usr/share/zoneinfo",
    ),
    *("/dev/null", "/dev/urandom", sys.base_prefix, sys.prefix),
)
#: What git's library reads of an environment. The machine's own settings of git are not for what a job fetches.
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "TMPDIR": "/proc/self/cwd",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
}
#: The current directory by a path that needs no right to those above it.
HERE = "/proc/self/cwd"
_MEMORY_BYTES = 2 << 30
_OPEN_FILES = 128
_CHUNK_BYTES = 1 << 20
_SINGLE = ("gz", "bz2", "xz")
#: Loaded while modules can still be read: names of hosts and of files in archives need them.
_CODECS = ("idna", "ascii", "latin-1", "cp437", "utf-8")


def main() -> None:
    """Serve the socket that is descriptor 0: one helper for each socket that comes over it."""
    os.environ.clear()
    os.environ.update(_ENVIRONMENT)
    for name in _CODECS:
        codecs.lookup(name)
    # Certificates are read once: new ones are seen by the next such process.
    tls = ssl.create_default_context()
    serve(
        socket.socket(fileno=0),
        lambda agent, parent_pid: _work(agent, parent_pid, tls),
        keeps_files=True,
    )


def _work(agent: socket.socket, parent_pid: int, tls: ssl.SSLContext) -> None:
    """Fetch one artifact."""
    _, fds, _, _ = socket.recv_fds(agent, 1, 2)
    with agent.makefile("rb") as lines:
        order = msgspec.json.decode(lines.readline(), type=FetchOrder)
    if order.insecure:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    try:
        _give_up_rights(order, parent_pid, fds[0])
        answer = _fetch(order, tls, fds[1] if len(fds) > 1 else -1)
    except FetchRefused as err:
        answer = FetchAnswer(reason=str(err), recoverable=err.recoverable)
    except (OSError, urllib3.exceptions.HTTPError) as err:
        answer = FetchAnswer(reason=_shown(err), recoverable=True)
    except Exception as err:  # noqa: BLE001 - readers of archives raise whatever a damaged one makes them.
        text = f"the archive cannot be unpacked: {type(err).__name__}: {err}"
        answer = FetchAnswer(reason=text[:300], recoverable=True)
    agent.sendall(msgspec.json.encode(answer) + b"\n")


def _shown(err: Exception) -> str:
    """Say an error without the URL, which may hold secrets."""
    reason = getattr(err, "reason", None) or err
    text = getattr(reason, "strerror", None) or str(reason)
    # urllib3 puts its own object in front.
    return str(text).rpartition(">: ")[2].rpartition("): ")[2][:300] or type(err).__name__


def _give_up_rights(order: FetchOrder, parent_pid: int, directory: int) -> None:
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: _MEMORY_BYTES,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_FSIZE: order.bytes_max,
    }
    user = UNPRIVILEGED_ID if os.geteuid() == 0 else -1
    give_up_rights(owner=(user, user), parent_pid=parent_pid, limits=limits)
    os.fchdir(directory)
    try:
        landlock.restrict(read=READABLE, write=(".",))
    except OSError as err:
        if order.needs_landlock:
            raise FetchRefused(f"the operator requires Landlock: {err.strerror or err}") from err


def _fetch(order: FetchOrder, tls: ssl.SSLContext, content_fd: int) -> FetchAnswer:
    try:
        source = read_source(order.source, order.options)
        kind = source.archive
    except ValueError as err:
        raise FetchRefused(f"source {err}") from err
    wanted = _checksum(source.options.get("checksum", ""))
    sums = {name: hashlib.new(name, usedforsecurity=False) for name in {"sha256", wanted[0]} - {""}}

    def seen(part: bytes) -> None:
        for one in sums.values():
            one.update(part)

    if kind == "git":
        _build_commit(order, source, tls)
        return FetchAnswer()
    given = os.fdopen(content_fd, "rb") if content_fd >= 0 else None
    with _content(order, source, tls, seen, given=given) as content:
        if wanted[0] and sums[wanted[0]].hexdigest() != wanted[1]:
            found = sums[wanted[0]].hexdigest()
            raise FetchRefused(f"the {wanted[0]} sum is {found}, not {wanted[1]}", recoverable=True)
        _build(order, source, kind, content)
    return FetchAnswer(sha256=sums["sha256"].hexdigest())


def _checksum(text: str) -> tuple[str, str]:
    """Split a sum into type and digits; a bare one has the type of its length."""
    by_length = {count: name for name, count in CHECKSUM_CHARS.items()}
    if text and ":" not in text and len(text) in by_length:
        text = f"{by_length[len(text)]}:{text}"
    if text and (fault := checksum_error(text)):
        raise FetchRefused(f"checksum {fault}")
    kind, _, digits = text.partition(":")
    return kind, digits.lower()


def _client(order: FetchOrder, source: ArtifactSource, tls: ssl.SSLContext) -> CheckedHttp:
    headers, options = dict(order.headers), source.options
    if source.getter == "s3" and "aws_access_key_id" in options:
        keys = AwsKeys(
            options["aws_access_key_id"],
            options.get("aws_access_key_secret", ""),
            options.get("aws_access_token", ""),
        )
        region = aws_region(urlsplit(source.url).hostname or "", options.get("region", ""))
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        headers |= signed_headers(source.url, keys, region=region, stamp=stamp)
    for name, text in headers.items():
        # http.client would show the value.
        if not name.isprintable() or not text.isprintable():
            raise FetchRefused(f"header {name[:40]!r} holds a line end or a control character")
    rules = AddressRules(order.allow, order.refused_hosts)
    return CheckedHttp(rules, tls=tls, headers=headers, stall_s=order.stall_s)


def _content(
    order: FetchOrder,
    source: ArtifactSource,
    tls: ssl.SSLContext,
    seen: Callable[[bytes], object],
    *,
    given: BinaryIO | None,
) -> BinaryIO:
    """Open the content at its beginning, after all of it was seen."""
    if given is None:
        client = _client(order, source, tls)
        with Path("raw").open("wb") as target:
            download(client, source.url, target, seen, bytes_max=order.bytes_max)
        return Path("raw").open("rb")
    while part := given.read(_CHUNK_BYTES):
        seen(part)
    given.seek(0)
    return given


def _build_commit(order: FetchOrder, source: ArtifactSource, tls: ssl.SSLContext) -> None:
    if git_fetch is None:
        raise FetchRefused("git needs the extra git: pip install 'caravan-orchestrator[git]'")
    if order.mode == "file":
        raise FetchRefused("a repository is a directory, and mode is file")
    top = _new_tree()
    unpacker = Unpacker(
        top,
        bytes_max=order.bytes_max,
        files_max=order.files_max,
        # What a repository has is not more than what was sent by any known ratio.
        packed_bytes=order.bytes_max,
    )
    unpacker.tree(
        git_fetch.fetch_commit(
            _client(order, source, tls),
            source.url,
            ref=source.options.get("ref", ""),
            depth=int(source.options.get("depth") or 0),
            folder=f"{HERE}/repo",
        )
    )
    _take_out(order, source, top, is_tree=True)


def _new_tree() -> int:
    Path("tree").mkdir(mode=0o755)
    return os.open("tree", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _build(order: FetchOrder, source: ArtifactSource, kind: str, content: BinaryIO) -> None:
    """Make `out`: a directory whose content goes to the destination."""
    is_tree = kind not in ("", *_SINGLE)
    if order.mode == "dir" and not is_tree:
        raise FetchRefused("mode is dir, and the source is a single file")
    if source.inner and not is_tree:
        raise FetchRefused(
            "the source is a single file: a directory after // needs an archive or a repository"
        )
    top = _new_tree()
    name = order.file_name if order.mode == "file" else source.name
    if kind in _SINGLE and order.mode != "file" and "filename" not in source.options:
        name = name.rpartition(".")[0] or name
    if not is_tree and name in ("", ".", ".."):
        raise FetchRefused("the source names no file; set option filename, or mode file")
    unpacker = Unpacker(
        top,
        bytes_max=order.bytes_max,
        files_max=order.files_max,
        packed_bytes=os.fstat(content.fileno()).st_size,
    )
    if is_tree:
        unpacker.unpack(kind, content)
    elif kind:
        unpacker.single(kind, content, name)
    else:
        unpacker.plain(content, name)
    _take_out(order, source, top, is_tree=is_tree)


def _take_out(order: FetchOrder, source: ArtifactSource, top: int, *, is_tree: bool) -> None:
    if source.inner:
        try:
            os.close(open_within(top, source.inner))
        except OSError as err:
            raise FetchRefused(f"the archive has no directory {source.inner[:80]!r}") from err
    found = Path("tree", *source.inner.split("/")) if source.inner else Path("tree")
    if order.mode == "file" and is_tree:
        names = os.listdir(found)
        if len(names) != 1 or not stat.S_ISREG((found / names[0]).lstat().st_mode):
            raise FetchRefused("mode is file, and the archive does not hold exactly one file")
        Path("out").mkdir(mode=0o755)
        (found / names[0]).rename(Path("out", order.file_name))
    else:
        found.rename("out")
    shutil.rmtree("tree", ignore_errors=True)
