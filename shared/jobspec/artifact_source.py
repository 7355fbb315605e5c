"""Reads the source of an artifact: which getter fetches it, from where, and which part of it is taken.

Pure: the submission is checked with it, and the agent fetches by it once all references are filled in.
Source: Nomad's and go-getter's forms of a source. Next: `checks/artifacts.py`.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from shared.numerals import is_digits

#: What is fetched today.
GETTERS = ("http", "https", "file", "git", "s3", "gcs")
#: Known to Nomad, and not built.
UNBUILT_GETTERS = ("hg",)
#: Options that are not sent to the server.
OWN_OPTIONS = frozenset(("archive", "checksum", "filename"))
_OWN_OPTIONS_OF = {
    "git": frozenset(("ref", "depth", "sshkey")),
    "s3": frozenset(
        ("region", "aws_access_key_id", "aws_access_key_secret", "aws_access_token", "aws_profile")
    ),
}
#: Hosts of repositories, which need no scheme.
_GIT_HOSTS = ("github.com", "gitlab.com", "bitbucket.org")
_GCS_API = "https://www.googleapis.com/storage/v1/"
#: Kinds of archives by their suffix; the longest one counts. `tar` in front: more than one file.
ARCHIVES = {
    "tar": "tar",
    "tar.gz": "tar.gz",
    "tgz": "tar.gz",
    "tar.bz2": "tar.bz2",
    "tbz2": "tar.bz2",
    "tar.xz": "tar.xz",
    "txz": "tar.xz",
    "zip": "zip",
    "gz": "gz",
    "bz2": "bz2",
    "xz": "xz",
}
#: Of a compression that is not built.
UNBUILT_ARCHIVES = ("tar.zst", "tzst", "zst")
#: Digits of each sum.
CHECKSUM_CHARS = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}
_FORCED = re.compile(r"^([A-Za-z0-9]*)::(.*)$", re.DOTALL)
_HEX = re.compile(r"[0-9a-fA-F]+")


class ArtifactSource(NamedTuple):
    """A source without references."""

    getter: str
    #: of http and https: without the options that are ours.
    url: str
    #: directory of the archive that is taken; empty: all of it.
    inner: str
    #: of OWN_OPTIONS, from the query and the block; the block wins.
    options: Mapping[str, str]

    @property
    def name(self) -> str:
        """Name of the file, for a destination that is a directory."""
        return self.options.get("filename") or urlsplit(self.url).path.rpartition("/")[2]

    @property
    def archive(self) -> str:
        """Kind of the archive that is unpacked; empty: the file is taken as it is. Raises ValueError."""
        if self.getter == "git":
            return "git"
        said = self.options.get("archive", "")
        if said in ("false", "0"):
            return ""
        path = urlsplit(self.url).path
        return archive_kind(
            f".{said}" if said not in ("", "true", "1") else path, is_said=bool(said)
        )

    def shown(self) -> str:
        """The source for people: without query and login, which may be secret."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path, "", ""))


def archive_kind(path: str, *, is_said: bool = False) -> str:
    """Tell the kind of an archive from its suffix; empty: it is none. Raises ValueError."""
    name = path.rpartition("/")[2].lower()
    for suffix in sorted((*ARCHIVES, *UNBUILT_ARCHIVES), key=len, reverse=True):
        if name.endswith("." + suffix):
            if suffix in UNBUILT_ARCHIVES:
                raise ValueError(
                    f"unpacking of {suffix} is not built yet; option archive = false takes the file as it is"
                )
            return ARCHIVES[suffix]
    if is_said and name not in (".true", ".1"):
        raise ValueError(f"archive {name[1:40]!r} is not one of {', '.join(ARCHIVES)}")
    return ""


def read_source(text: str, options: Mapping[str, str]) -> ArtifactSource:
    """Read a source without references. Raises ValueError with what is wrong."""
    forced = _FORCED.match(text)
    getter, rest = (forced.group(1).lower(), forced.group(2)) if forced else ("", text)
    try:
        _ = urlsplit(rest).port
    except ValueError:
        # Python's own text shows a part of the login.
        raise ValueError("is not a URL: in a login, / : @ are written %2F %3A %40") from None
    if forced and not getter:
        raise ValueError("names no getter before ::")
    getter = getter or _getter(rest)
    if getter in UNBUILT_GETTERS:
        raise ValueError(f"getter {getter} is not built yet; use git, or an archive over https")
    if getter not in GETTERS:
        known = ", ".join((*GETTERS, *UNBUILT_GETTERS))
        raise ValueError(f"getter {getter[:40]!r} is not known; the getters are {known}")
    rest = rest.removeprefix("file://") if getter == "file" else rest
    if getter == "git":
        rest = _git_url(rest)
    elif getter == "gcs" and rest.startswith(_GCS_API):
        rest = "https://storage.googleapis.com/" + rest.removeprefix(_GCS_API)
    found = _split(getter, rest, options)
    if getter == "git":
        _check_git(found)
    if "aws_profile" in found.options and getter == "s3":
        raise ValueError("option aws_profile names credentials of the agent's user; set the keys")
    return found


def _git_url(rest: str) -> str:
    if rest.startswith(("git@", "ssh://")):
        raise ValueError("git over ssh is not built yet; use git::https://")
    return f"https://{rest}" if rest.partition("/")[0] in _GIT_HOSTS else rest


def _check_git(found: ArtifactSource) -> None:
    """Check the options of a repository. Raises ValueError."""
    if "sshkey" in found.options:
        raise ValueError("git over ssh is not built yet; use git::https:// without sshkey")
    if "checksum" in found.options:
        raise ValueError("a directory has no checksum; option ref can be a commit")
    depth = found.options.get("depth", "")
    if depth and not (is_digits(depth) and 0 < int(depth) < 1 << 31):
        raise ValueError(f"option depth must be a number from 1, was {depth[:20]!r}")


def _getter(rest: str) -> str:
    if rest.startswith("git@") or urlsplit(rest).path.endswith(".git"):
        return "git"
    if rest.startswith("/"):
        return "file"
    scheme = rest.partition("://")[0] if "://" in rest else ""
    # As go-getter guesses: a host without a scheme, except well-known ones.
    host = rest.partition("/")[0]
    if not scheme and host in _GIT_HOSTS:
        return "git"
    if not scheme:
        raise ValueError("must begin with https://, http://, file:// or an absolute path")
    return scheme.lower()


def _split(getter: str, rest: str, options: Mapping[str, str]) -> ArtifactSource:
    if getter != "file" and not rest.startswith(("http://", "https://")):
        raise ValueError(f"getter {getter} takes a URL that begins with http:// or https://")
    parts = urlsplit(rest)
    if getter != "file":
        _ = parts.port  # Raises ValueError for one that is not a number.
        if not parts.hostname:
            raise ValueError("names no host")
    head, _, inner = parts.path.partition("//")
    if ".." in inner.split("/"):
        raise ValueError("the directory after // must not contain ..")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    known = OWN_OPTIONS | _OWN_OPTIONS_OF.get(getter, frozenset())
    own = {name: value for name, value in pairs if name in known}
    sent = [(name, value) for name, value in pairs if name not in known]
    own |= {name: value for name, value in options.items() if name in known}
    sent += [(name, value) for name, value in sorted(options.items()) if name not in known]
    if getter == "s3":
        # Nomad's word for the parameter of the store.
        sent = [("versionId" if name == "version" else name, value) for name, value in sent]
    url = urlunsplit((parts.scheme, parts.netloc, head, urlencode(sent), ""))
    name = own.get("filename", "")
    if "/" in name or name in (".", ".."):
        raise ValueError("option filename must be the name of a file without a directory")
    return ArtifactSource(getter, url, inner.strip("/"), own)


def checksum_error(text: str) -> str:
    """Say what is wrong with a checksum `type:hex`; empty: nothing."""
    kind, colon, digits = text.partition(":")
    if not colon or kind not in CHECKSUM_CHARS:
        return f"must be TYPE:HEX with a type of {', '.join(CHECKSUM_CHARS)}"
    if len(digits) != CHECKSUM_CHARS[kind] or not _HEX.fullmatch(digits):
        return f"{kind} has {CHECKSUM_CHARS[kind]} hexadecimal digits"
    return ""
