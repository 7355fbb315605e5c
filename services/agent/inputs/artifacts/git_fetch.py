"""Fetches one commit of a repository over HTTP, without a git binary, hooks or submodules.

Needs the extra `git` (dulwich). The files are written by the unpacker, under its limits; no `.git` is left.
"""

import importlib
import re
import stat
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import urllib3
from dulwich.client import FetchPackResult, Urllib3HttpGitClient
from dulwich.errors import GitProtocolError, NotGitRepository
from dulwich.object_store import iter_tree_contents
from dulwich.objects import Blob, Commit, ShaFile, Tag
from dulwich.repo import Repo

from services.agent.inputs.artifacts.fetch_order import FetchRefused
from services.agent.inputs.artifacts.http_fetch import CheckedHttp, check_status

#: What dulwich imports where it is first used. Loaded here, since the user that fetches may have no right to read
#: modules: an environment below a directory of mode 0700 is enough.
for _late in (
    *("bitmap", "bundle_uri", "commit_graph", "dumb", "midx", "object_filters", "reflog"),
    *("reftable", "trailers", "worktree"),
):
    importlib.import_module(f"dulwich.{_late}")

_HEX_CHARS = frozenset("0123456789abcdef")
#: dulwich names whole URLs, with their logins.
_LOGIN = re.compile(r"//[^/\s]*@")


class _CheckedPool:
    """What dulwich asks for answers: every connection goes to a checked address."""

    #: sent with every request.
    headers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, client: CheckedHttp, home: str) -> None:
        self._client = client
        #: where the login belongs: what dulwich asks for later may be of the host of a redirect.
        self._home = home

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        body: Any = None,
        **_: object,
    ) -> urllib3.BaseHTTPResponse:
        """Make a request; its redirects are followed already."""
        data = body if body is None or isinstance(body, bytes) else b"".join(body)
        answer, final = self._client.open(url, method, headers=headers, body=data, home=self._home)
        check_status(answer.status)
        answer.url = final
        return answer


def fetch_commit(
    client: CheckedHttp, url: str, *, ref: str, depth: int, folder: str
) -> Iterator[tuple[str, int, bytes]]:
    """Fetch the tree of a ref (a branch, a tag, a commit; empty: HEAD) into a repository in `folder`.

    Yields path, mode and content of its files and links. Raises FetchRefused.
    """
    parts = urlsplit(url)
    base = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
    git = Urllib3HttpGitClient(base, pool_manager=_CheckedPool(client, base))  # type: ignore[arg-type]
    with Repo.init_bare(folder, mkdir=True) as repo:
        wanted: list[bytes] = []

        def choose(refs: Any, depth: int | None = None) -> Any:  # noqa: ARG001 - dulwich's.
            wanted.append(_chosen(dict(refs), ref))
            return wanted

        try:
            found: FetchPackResult = git.fetch(
                parts.path.encode(), repo, determine_wants=choose, depth=depth or 1
            )
        except (GitProtocolError, NotGitRepository) as err:
            text = _LOGIN.sub("//", str(err))
            raise FetchRefused(f"git: {text}"[:300], recoverable=True) from err
        del found
        yield from _files(repo, wanted[-1])


def _chosen(refs: dict[bytes, bytes | None], ref: str) -> bytes:
    """Find the commit of a ref. Raises FetchRefused."""
    names = (f"refs/heads/{ref}", f"refs/tags/{ref}", ref) if ref else ("HEAD",)
    for name in names:
        if (found := refs.get(name.encode())) is not None:
            return found
    if len(ref) == 40 and _HEX_CHARS.issuperset(ref):
        # A server may refuse a commit that no branch or tag names.
        return ref.encode()
    raise FetchRefused(f"git: the repository has no ref {ref[:80] or 'HEAD'!r}")


def _files(repo: Repo, sha: bytes) -> Iterator[tuple[str, int, bytes]]:
    found: ShaFile = repo[sha]
    while isinstance(found, Tag):
        found = repo[found.object[1]]
    if not isinstance(found, Commit):
        raise FetchRefused("git: the ref is not a commit")
    for entry in iter_tree_contents(repo.object_store, found.tree):
        assert entry.path is not None
        assert entry.mode is not None
        if not (stat.S_ISREG(entry.mode) or stat.S_ISLNK(entry.mode)):
            # A submodule: its files are of another repository.
            continue
        blob = repo[entry.sha]
        assert isinstance(blob, Blob)
        yield entry.path.decode(errors="surrogateescape"), entry.mode, blob.data
