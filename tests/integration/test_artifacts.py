"""Artifacts: what is fetched, from where, what of it is taken, and what of an archive is refused."""

import asyncio
import hashlib
import io
import os
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

import msgspec
import pytest
from dulwich import porcelain
from dulwich.repo import Repo
from dulwich.server import DictBackend
from dulwich.web import WSGIRequestHandlerLogger, make_server, make_wsgi_chain

from services.agent.drivers.isolation import landlock
from services.agent.executor.alloc_dirs import AllocDirs
from services.agent.executor.data_dir import DataDir
from services.agent.inputs.artifacts import handler
from services.agent.inputs.artifacts.addresses import AddressRules
from services.agent.inputs.artifacts.aws_signature import AwsKeys, aws_region, signed_headers
from services.agent.inputs.artifacts.handler import ArtifactHandler
from services.agent.inputs.artifacts.settings import ArtifactSettings, artifact_settings, bus_hosts
from services.agent.inputs.input_handler import InputContext, InputFailed
from shared.core.runtime.agent_messages import TaskInput, TaskLaunch
from shared.core.runtime.input_specs import ArtifactInput
from shared.errors import ConfigInvalid
from tests.bounds import WAIT_S

ALLOC = "a" * 36


#: The helper as it is on the strictest machine: once it gave up its rights it can load no module (an environment that
#: only root may enter) and open no file that is not named as readable (Landlock).
STRICTEST = """
import sys
from services.agent.inputs.artifacts import fetch_helper
give_up = fetch_helper._give_up_rights
class Refusing:
    def find_spec(self, name, *_):
        raise ModuleNotFoundError(f"late import of {name}")
allowed = (*fetch_helper.READABLE, fetch_helper.HERE)
def look(event, args):
    if event == "open" and str(args[0]).startswith("/") and not args[0].startswith(allowed):
        raise PermissionError(13, "Permission denied", args[0])
def and_refuse(*given):
    give_up(*given)
    sys.meta_path.insert(0, Refusing())
    sys.addaudithook(look)
fetch_helper._give_up_rights = and_refuse
fetch_helper.main()
"""


@pytest.fixture(autouse=True)
def _strictest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "_HELPER", STRICTEST)


def tar(*members: tuple[str, Any], mode: str = "w:gz") -> bytes:
    """An archive: (name, content), a TarInfo where it is no file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, content in members:
            if isinstance(content, tarfile.TarInfo):
                content.name = name
                archive.addfile(content)
                continue
            data, bits = content if isinstance(content, tuple) else (content, 0o644)
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), bits
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def special(kind: bytes, target: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo()
    found.type, found.linkname = kind, target
    return found


class Store(BaseHTTPRequestHandler):
    """A server of a few files, which remembers what it was asked."""

    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[tuple[str, dict[str, str]]]] = []
    hangs: ClassVar[threading.Event] = threading.Event()

    def do_GET(self) -> None:
        self.asked.append((self.path, dict(self.headers)))
        path, _, query = self.path.partition("?")
        if path == "/to":
            self.send_response(302)
            self.send_header("Location", unquote(query.partition("=")[2]))
            self.end_headers()
        elif path == "/slow":
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            self.wfile.write(b"x" * 1000)
            self.wfile.flush()
            self.hangs.set()
            self.rfile.read()
        elif path in self.files:
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.files[path])))
            self.end_headers()
            self.wfile.write(self.files[path])
        else:
            self.send_error(404)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def store() -> Iterator[str]:
    Store.files, Store.asked, Store.hangs = {}, [], threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[DataDir]:
    found = DataDir(tmp_path / "data", "n1")
    yield found
    found.close()


def fetched(
    home: DataDir,
    source: str,
    *,
    user: str = "",
    refused_hosts: tuple[str, ...] = (),
    settings: dict[str, Any] | None = None,
    **fields: Any,
) -> Path:
    """Prepare one artifact; returns the task's directory."""
    places = home.places(ALLOC, "main")
    AllocDirs(home.top, memory=False).prepare(places)
    own = ArtifactSettings(**{"allow": "127.0.0.0/8", **(settings or {})})
    artifacts = ArtifactHandler(home.top, own, refused_hosts=refused_hosts)
    spec = ArtifactInput(source=source, **fields)
    wanted = TaskInput(
        name="artifact[0]", kind="artifact", spec=msgspec.Raw(msgspec.json.encode(spec))
    )
    launch = TaskLaunch(user=user)
    about = InputContext(key=7, alloc_id=ALLOC, task="main", run=1, places=places, launch=launch)
    try:
        asyncio.run(artifacts.prepare(about, wanted))
    finally:
        artifacts.close()
    assert list((home.top / "fetch").iterdir()) == []
    return places.task


def refused(home: DataDir, source: str, **fields: Any) -> InputFailed:
    """Prepare an artifact that fails; nothing stays behind."""
    with pytest.raises(InputFailed) as found:
        fetched(home, source, **fields)
    assert list((home.top / "fetch").iterdir()) == []
    return found.value


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


# ---- what arrives ----


def test_files_and_archives_arrive_where_the_mode_says(home: DataDir, store: str) -> None:
    """An archive is unpacked, a file keeps its name; in mode file it is the destination (S22: also in alloc/)."""
    Store.files["/f.txt"] = b"plain"
    Store.files["/t.tgz"] = tar(
        ("d/run", (b"#!", 0o4755)), ("d/l", special(tarfile.SYMTYPE, "run"))
    )
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("z/a", b"za")
    Store.files["/z.zip"] = zipped.getvalue()
    task = fetched(home, f"{store}/f.txt")
    assert (task / "local" / "f.txt").read_bytes() == b"plain"
    fetched(home, f"{store}/t.tgz")
    run = task / "local" / "d" / "run"
    assert stat.S_IMODE(run.stat().st_mode) == 0o755  # S16
    assert (task / "local" / "d" / "l").readlink() == Path("run")  # S12
    fetched(home, f"{store}/t.tgz//d", destination="local/inner")
    assert (task / "local" / "inner" / "run").exists()
    fetched(home, f"{store}/t.tgz", destination="local/whole", options={"archive": "false"})
    assert (task / "local" / "whole" / "t.tgz").exists()
    fetched(home, f"{store}/z.zip?archive=zip", destination="${NOMAD_ALLOC_DIR}/shared")
    assert (task.parent / "alloc" / "shared" / "z" / "a").read_bytes() == b"za"
    fetched(home, f"{store}/f.txt", destination="local/exact", mode="file")
    assert (task / "local" / "exact").read_bytes() == b"plain"


def test_what_is_there_is_merged_with(home: DataDir, store: str) -> None:
    """Directories merge; a file takes the place of a directory and the other way round."""
    Store.files["/t.tar"] = tar(("a", b"new"), ("b/c", b"new"), mode="w")
    task = fetched(home, f"{store}/t.tar")
    local = task / "local"
    (local / "b" / "kept").write_bytes(b"mine")
    (local / "a").unlink()
    (local / "a").mkdir()
    fetched(home, f"{store}/t.tar")
    assert (local / "a").read_bytes() == b"new"
    assert (local / "b" / "kept").read_bytes() == b"mine"


def test_headers_and_options_are_sent_and_the_environment_is_not_seen(
    home: DataDir, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers go to the job's host alone, options become parameters (S18); no proxy of the agent's is used (S19)."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    Store.files["/f"] = b"x"
    other = store.replace("127.0.0.1", "localhost")
    fetched(home, f"{store}/f", headers={"X-Token": "t"}, options={"version": "1"})
    fetched(home, f"{store}/to?u={other}/f", headers={"X-Token": "t"}, destination="local/2")
    (first, headers), *_, (_, elsewhere) = Store.asked
    assert (first, headers["X-Token"]) == ("/f?version=1", "t")
    assert "X-Token" not in elsewhere


def test_chown_gives_the_tree_to_the_user_of_the_task(home: DataDir, store: str) -> None:
    """The destination too (S17); an agent without the right refuses for good."""
    Store.files["/t.tgz"] = tar(("d/f", b"x"))
    if os.geteuid():
        assert "root" in str(refused(home, f"{store}/t.tgz", user="root", chown=True))
        return
    task = fetched(home, f"{store}/t.tgz", user="nobody", chown=True, destination="local/x")
    owned = [task / "local" / "x", task / "local" / "x" / "d", task / "local" / "x" / "d" / "f"]
    assert {one.stat().st_uid for one in owned} == {65_534}
    fetched(home, f"{store}/t.tgz", user="nobody", destination="local/y")
    assert (task / "local" / "y" / "d" / "f").stat().st_uid == 0


# ---- sums and the cache ----


def test_a_wrong_sum_leaves_nothing_and_may_be_tried_again(home: DataDir, store: str) -> None:
    """S4; the message has both sums, and no query."""
    Store.files["/f"] = b"data"
    wrong = {"checksum": sha256(b"other"), "token": "secret"}
    found = refused(home, f"{store}/f", options=wrong)
    assert found.recoverable
    assert sha256(b"data")[7:] in str(found)
    assert "secret" not in str(found)
    assert list((home.places(ALLOC, "main").task / "local").iterdir()) == []
    fetched(home, f"{store}/f", options={"checksum": sha256(b"data")})


def test_a_file_with_a_strong_sum_is_asked_for_once(home: DataDir, store: str) -> None:
    """The copy is verified when it is used: a damaged one is fetched again (A2)."""
    Store.files["/f"] = b"data"
    options = {"checksum": sha256(b"data")}
    for at in range(2):
        fetched(home, f"{store}/f", options=options, destination=f"local/{at}")
    assert len(Store.asked) == 1
    (cached,) = (home.top / "artifacts").iterdir()
    assert (cached.stat().st_mode & 0o777, (home.top / "artifacts").stat().st_mode & 0o77) == (
        0o400,
        0,
    )
    cached.unlink()
    cached.write_bytes(b"bad!")
    task = fetched(home, f"{store}/f", options=options, destination="local/2")
    assert (task / "local" / "2" / "f").read_bytes() == b"data"
    assert len(Store.asked) == 2
    fetched(home, f"{store}/f", options={"checksum": f"md5:{hashlib.md5(b'data').hexdigest()}"})
    assert len(list((home.top / "artifacts").iterdir())) == 1


def test_the_cache_is_bounded(home: DataDir, store: str) -> None:
    """What was used least recently goes first."""
    for at in range(3):
        data = bytes([at]) * 500_000
        Store.files[f"/{at}"] = data
        fetched(
            home, f"{store}/{at}", options={"checksum": sha256(data)}, settings={"cache_mib": 1}
        )
    assert len(list((home.top / "artifacts").iterdir())) == 2


# ---- addresses ----


OWN = (
    *("127.0.0.1", "::1", "0.0.0.0", "169.254.169.254", "fe80::1", "fd00:ec2::254"),
    *("::ffff:127.0.0.1", "64:ff9b::7f00:1", "100.100.100.200", "224.0.0.1", "240.0.0.1"),
    *("2002:7f00:1::", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42"),
)


@pytest.mark.parametrize("address", OWN)
def test_own_and_metadata_addresses_are_refused(address: str) -> None:
    """Also in the clothes of IPv6; a range that the operator allows is not (A1)."""
    assert AddressRules().refusal(ip_address(address))
    assert not AddressRules(["0.0.0.0/0", "::/0"]).refusal(ip_address(address))


def test_public_and_private_addresses_are_not_refused_but_those_of_the_bus_are() -> None:
    """A store inside the network is where artifacts are."""
    for one in ("10.0.0.7", "192.168.1.1", "1.1.1.1", "2606:4700::1"):
        assert not AddressRules().refusal(ip_address(one))
    assert "bus" in AddressRules().refusal(ip_address("10.0.0.7"), {ip_address("10.0.0.7")})
    assert bus_hosts("nats://u:p@10.0.0.7:4222,nats.local:4222") == ("10.0.0.7", "nats.local")


def test_a_refused_address_is_final_also_behind_a_redirect(home: DataDir, store: str) -> None:
    """The connection goes to the address that was checked: names are not resolved twice."""
    found = refused(home, f"{store}/f", settings={"allow": ""})
    assert (found.recoverable, "the node's own" in str(found)) == (False, True)
    found = refused(home, f"{store}/to?u=http://169.254.169.254/latest/meta-data")
    assert (found.recoverable, "link-local" in str(found)) == (False, True)


def test_the_addresses_of_the_bus_are_refused(home: DataDir, store: str) -> None:
    """Unless the operator allows them by a range."""
    found = refused(
        home, f"{store}/f", settings={"allow": "10.0.0.0/8"}, refused_hosts=("127.0.0.1",)
    )
    assert "bus" in str(found)


def test_a_redirect_to_another_scheme_is_refused(home: DataDir, store: str) -> None:
    """No file of the helper's machine is read by a server's word."""
    assert "scheme" in str(refused(home, f"{store}/to?u=file:///etc/passwd"))


# ---- what is refused ----


def test_statuses_and_sources_that_fail(home: DataDir, store: str) -> None:
    """A missing file may come (404 is tried again, as in Nomad); a source that cannot be read is final (S9)."""
    found = refused(home, f"{store}/missing?token=secret")
    assert (found.recoverable, "404" in str(found), "secret" in str(found)) == (True, True, False)
    assert refused(home, "::example.com").recoverable is False
    assert refused(home, "http://127.0.0.1:1/x").recoverable is True
    assert "leaves" in str(refused(home, f"{store}/f", destination="../../x"))


def test_files_of_the_node_are_the_operators_to_allow(home: DataDir, tmp_path: Path) -> None:
    """Below its folder alone, and through no link."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    (folder / "link").symlink_to(tmp_path / "b")
    assert "operator" in str(refused(home, str(folder / "a")))
    allowed = {"files": str(folder)}
    task = fetched(home, f"file://{folder}/a", settings=allowed)
    assert (task / "local" / "a").read_bytes() == b"a"
    for source in (f"{folder}/../b", f"{folder}/link", str(folder)):
        assert refused(home, source, settings=allowed)


BAD = {
    "parent": [("../x", b"")],
    "absolute": [("/x", b"")],
    "device": [("x", special(tarfile.CHRTYPE))],
    "pipe": [("x", special(tarfile.FIFOTYPE))],
    "hard link out": [("x", special(tarfile.LNKTYPE, "../../etc/passwd"))],
    "hard link to nothing": [("x", special(tarfile.LNKTYPE, "y"))],
    "link out": [("etc", special(tarfile.SYMTYPE, "/etc"))],
    "link up": [("a/l", special(tarfile.SYMTYPE, "../../x"))],
    "through a link": [("a", special(tarfile.SYMTYPE, "b")), ("a/x", b"")],
    "twice": [("a", b""), ("a", b"")],
    "empty": [],
    "too deep": [("d/" * 65 + "x", b"")],
}


@pytest.mark.parametrize("name", BAD)
def test_an_archive_that_leads_out_is_refused_whole(home: DataDir, store: str, name: str) -> None:
    """Nothing of it is at the destination, and it is not tried again (S11, S15)."""
    Store.files["/t.tgz"] = tar(("good", b"x"), *BAD[name]) if BAD[name] else tar()
    found = refused(home, f"{store}/t.tgz")
    assert found.recoverable is False, str(found)
    assert list((home.places(ALLOC, "main").task / "local").iterdir()) == []


def test_files_and_bytes_are_counted_while_they_are_written(home: DataDir, store: str) -> None:
    """4,097 files, more bytes than allowed, a bomb: each stops while it is written (S14)."""
    Store.files["/many.tar"] = tar(*((f"f{n}", b"") for n in range(4_097)), mode="w")
    assert "4096 files" in str(refused(home, f"{store}/many.tar"))
    Store.files["/big.tgz"] = tar(("f", b"\0" * 3_000_000))
    assert "bytes" in str(refused(home, f"{store}/big.tgz", settings={"max_bytes": 1_000_000}))
    Store.files["/f"] = b"x" * 2_000_000
    assert "larger" in str(refused(home, f"{store}/f", settings={"max_bytes": 1_000_000}))


def test_a_link_in_the_way_of_the_destination_fails_for_good(home: DataDir, store: str) -> None:
    """Nothing is written through what a task put there (A3)."""
    Store.files["/t.tgz"] = tar(("d/f", b"x"))
    task = fetched(home, f"{store}/t.tgz")
    outside = home.top.parent / "outside"
    outside.mkdir()
    (task / "local" / "d" / "f").unlink()
    (task / "local" / "d").rmdir()
    (task / "local" / "d").symlink_to(outside)
    fetched(home, f"{store}/t.tgz")
    assert (task / "local" / "d").is_symlink() is False
    (task / "own").symlink_to(outside)
    assert refused(home, f"{store}/t.tgz", destination="own/x").recoverable is False
    assert list(outside.iterdir()) == []


def test_the_helper_is_confined_where_the_kernel_can(home: DataDir, store: str) -> None:
    """Landlock holds for a python below a directory that only root may enter, too; without it nothing is fetched."""
    Store.files["/f"] = b"whole"
    if landlock.version():
        task = fetched(home, f"{store}/f", settings={"require": "landlock"})
        assert (task / "local" / "f").read_bytes() == b"whole"
    else:
        found = refused(home, f"{store}/f", settings={"require": "landlock"})
        assert "requires Landlock" in str(found)


# ---- lives ----


KILLED = """
import asyncio, sys
from tests.integration.test_artifacts import fetched
from services.agent.executor.data_dir import DataDir
from pathlib import Path
fetched(DataDir(Path(sys.argv[1]), "n1"), sys.argv[2])
"""


def test_an_agent_killed_in_a_download_leaves_no_half_file(tmp_path: Path, store: str) -> None:
    """Kill -9: the helper dies with it, and the next life begins with a fresh directory (S20)."""
    top = tmp_path / "data"
    agent = subprocess.Popen([sys.executable, "-c", KILLED, str(top), f"{store}/slow"])
    assert Store.hangs.wait(WAIT_S)
    helpers = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    assert len(list((top / "fetch").iterdir())) == 1
    for pid in helpers:
        assert _is_gone(int(pid))
    home = DataDir(top, "n1")
    Store.files["/f"] = b"whole"
    task = fetched(home, f"{store}/f")
    assert [one.name for one in (task / "local").iterdir()] == ["f"]
    home.close()


def _is_gone(pid: int) -> bool:
    """Wait for the kernel to end a process."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    import select

    ready = select.select([fd], [], [], 60)[0]
    os.close(fd)
    return bool(ready)


def test_settings_that_cannot_be_read_are_refused() -> None:
    """With the name of the variable."""
    prefix = "CARAVAN_AGENT_ARTIFACT_"
    for name, text in (
        ("ALLOW", "10.0.0.0/99"),
        ("REQUIRE", "x"),
        ("FILES", "a"),
        ("MAX_FILES", "0"),
    ):
        with pytest.raises(ConfigInvalid, match=name):
            artifact_settings({prefix + name: text})


# ---- stores and repositories ----


def test_a_signature_is_that_of_the_documented_example() -> None:
    """GET of an object, from the documentation of the algorithm; a region is read from the host."""
    keys = AwsKeys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    url = "https://examplebucket.s3.amazonaws.com/test.txt"
    found = signed_headers(
        url, keys, region="us-east-1", stamp="20130524T000000Z", more={"Range": "bytes=0-9"}
    )
    signature = found["authorization"].rpartition("=")[2]
    assert signature == "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    hosts = (
        "s3.amazonaws.com",
        "s3-eu-west-1.amazonaws.com",
        "b.s3.eu-west-2.amazonaws.com",
        "minio",
    )
    assert [aws_region(host, "") for host in hosts] == [
        "us-east-1",
        "eu-west-1",
        "eu-west-2",
        "us-east-1",
    ]


def test_an_object_of_a_store_is_fetched_signed_or_not(home: DataDir, store: str) -> None:
    """With keys the request is signed, and the secret is not in it; without, as a public one."""
    Store.files["/bucket/k.txt"] = b"object"
    keys = {"aws_access_key_id": "id", "aws_access_key_secret": "SECRET", "region": "r1"}
    task = fetched(home, f"s3::{store}/bucket/k.txt", options={**keys, "version": "7"})
    assert (task / "local" / "k.txt").read_bytes() == b"object"
    path, headers = Store.asked[-1]
    sent = {name.lower(): text for name, text in headers.items()}
    assert path == "/bucket/k.txt?versionId=7"
    assert sent["authorization"].startswith("AWS4-HMAC-SHA256 Credential=id/")
    assert "SECRET" not in str(headers)
    fetched(home, f"gcs::{store}/bucket/k.txt", destination="local/2")
    assert "authorization" not in {name.lower() for name in Store.asked[-1][1]}


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A repository over HTTP, with a branch, a tag and a link; its URL and first commit."""
    repo = Repo.init(str(tmp_path / "r.git"), mkdir=True)
    work = tmp_path / "r.git"
    (work / "sub").mkdir()
    (work / "run").write_bytes(b"#!/bin/sh\n")
    (work / "run").chmod(0o755)
    (work / "sub" / "l").symlink_to("../run")
    porcelain.add(repo, [str(work / "run"), str(work / "sub" / "l")])
    who = b"a <a@example.com>"
    first = porcelain.commit(repo, message=b"1", author=who, committer=who)
    porcelain.branch_create(repo, "old")
    (work / "run").write_bytes(b"#!/bin/sh\n# 2\n")
    porcelain.add(repo, [str(work / "run")])
    porcelain.commit(repo, message=b"2", author=who, committer=who)
    app = make_wsgi_chain(DictBackend({"/r.git": repo}))
    server = make_server("127.0.0.1", 0, app, handler_class=WSGIRequestHandlerLogger)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"git::http://127.0.0.1:{server.server_port}/r.git", first.decode()
    server.shutdown()
    thread.join()
    server.server_close()
    repo.close()


def test_a_commit_of_a_repository_is_fetched(home: DataDir, repository: tuple[str, str]) -> None:
    """HEAD, a branch, a commit, a directory of it; modes and inner links are kept, no `.git` is left."""
    url, first = repository
    task = fetched(home, url)
    assert (task / "local" / "run").read_bytes() == b"#!/bin/sh\n# 2\n"
    assert stat.S_IMODE((task / "local" / "run").stat().st_mode) == 0o755
    assert (task / "local" / "sub" / "l").readlink() == Path("../run")
    assert not (task / "local" / ".git").exists()
    fetched(home, url, options={"ref": "old"}, destination="local/old")
    assert (task / "local" / "old" / "run").read_bytes() == b"#!/bin/sh\n"
    fetched(home, url, options={"ref": first}, destination="local/sha")
    assert (task / "local" / "sha" / "run").read_bytes() == b"#!/bin/sh\n"


def test_a_repository_that_lacks_what_is_asked_for(
    home: DataDir, repository: tuple[str, str]
) -> None:
    """A ref that is not there is final; so is a link of a directory that leads out of it."""
    url, _ = repository
    found = refused(home, url, options={"ref": "none"})
    assert (found.recoverable, "no ref 'none'" in str(found)) == (False, True)
    assert "leads out" in str(refused(home, f"{url}//sub"))
    assert "no directory" in str(refused(home, f"{url}//other"))
    assert refused(home, url, settings={"allow": ""}).recoverable is False
    assert "files" in str(refused(home, url, settings={"max_files": 1}))
