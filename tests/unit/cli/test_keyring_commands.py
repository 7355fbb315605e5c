"""`caravan operator keyring`: what it asks, what it makes of the answers, and where it gets key and passphrase."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from schemas.identities import KeyringVerdict
from schemas.jobs import ErrorDetail
from services.cli.main import main
from services.cli.operator import keyring, keyring_files
from services.cli.runtime import bus_client
from services.cli.runtime.local_clusters import LocalClusterRecord
from services.cli.runtime.output import CliError
from services.keeper import keyring_tool
from shared.bus.server import accounts

FIRST, SECOND = "a" * 16, "b" * 16
SIGNER, NEW_SIGNER = "c" * 16, "d" * 16
CONFLICT = ErrorDetail(code="conflict", message="another key is in force")


class FakeKeeper:
    """Answers questions for keys, and requests in the order of `verdicts`, after which it has rotated."""

    def __init__(self) -> None:
        self.keys = [FIRST]
        self.signing = [SIGNER]
        self.verdicts: list[KeyringVerdict] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def ask(self, subject: str, body: bytes, timeout_s: float) -> bytes:
        """Answer one request."""
        del timeout_s
        if subject in {"query.keys", "query.signing_keys"}:
            shown = self.keys if subject == "query.keys" else self.signing
            told = [
                {"key_id": one, "algorithm": "RS256", "public": bytes(32), "create_seq": 9 - at}
                for at, one in enumerate(shown)
            ]
            return msgspec.json.encode(
                {"seq": 9, "cluster_id": "c", "keys": told, "total": len(told)}
            )
        self.asked.append((subject, msgspec.json.decode(body)))
        verdict = self.verdicts.pop(0)
        if not self.verdicts:
            self.keys, self.signing = [SECOND, FIRST], [NEW_SIGNER, SIGNER]
        return msgspec.json.encode(verdict)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeKeeper:
    """A keeper that commands talk to."""
    made = FakeKeeper()

    def with_bus(work: Callable[[Any], Awaitable[Any]], **_: object) -> Any:
        async def run() -> Any:
            return await work(SimpleNamespace(request_bytes=made.ask))

        return asyncio.run(run())

    monkeypatch.setattr(keyring, "with_bus", with_bus)
    monkeypatch.setattr(bus_client, "announce_target", lambda _note: None)
    return made


def result(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of a command."""
    code = main(["operator", "keyring", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_list_names_the_key_in_force(
    fake: FakeKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each kind the newest is in force, in JSON and for people."""
    fake.keys, fake.signing = [SECOND, FIRST], [NEW_SIGNER, SIGNER]
    code, found = result(capsys, "list")
    keys = [(one["kind"], one["key_id"], one["in_force"]) for one in found["keys"]]
    assert (code, found["total"], keys) == (
        0,
        4,
        [
            ("sealing", SECOND, True),
            ("sealing", FIRST, False),
            ("signing", NEW_SIGNER, True),
            ("signing", SIGNER, False),
        ],
    )
    assert main(["operator", "keyring", "list"]) == 0
    lines = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()[-4:]]
    assert [(line[0], line[1], line[3].strip()) for line in lines] == [
        ("sealing", SECOND, "in force"),
        ("sealing", FIRST, "replaced"),
        ("signing", NEW_SIGNER, "in force"),
        ("signing", SIGNER, "verifies"),
    ]


@pytest.mark.parametrize(
    "verdict",
    [
        KeyringVerdict(status="accepted", key_id=SECOND),
        KeyringVerdict(status="refused", key_id=SECOND, error=CONFLICT),
    ],
)
def test_a_rotation_names_the_key_that_it_replaces(
    fake: FakeKeeper, capsys: pytest.CaptureFixture[str], verdict: KeyringVerdict
) -> None:
    """After "pending" the same request is sent again; that the key was replaced meanwhile is what was wanted."""
    fake.verdicts = [KeyringVerdict(status="pending", key_id=FIRST), verdict]
    assert result(capsys, "rotate") == (0, {"key_id": SECOND})
    assert fake.asked == [("api.keyring.rotate", {"kind": "sealing", "in_force": FIRST})] * 2


def test_a_rotation_of_a_named_key_may_be_a_conflict(
    fake: FakeKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --in-force another key is an error; so is a refusal for another reason."""
    fake.verdicts = [KeyringVerdict(status="refused", key_id=SECOND, error=CONFLICT)]
    code, found = result(capsys, "rotate", "--in-force", SECOND)
    assert code == 1 and found["error"]["code"] == "conflict"
    assert fake.asked[-1][1]["in_force"] == SECOND
    error = ErrorDetail(code="unavailable", message="the key store is away")
    fake.verdicts = [KeyringVerdict(status="refused", error=error)]
    code, found = result(capsys, "rotate")
    assert code == 1 and found["error"]["message"] == "the key store is away"


def test_signing_keys_are_named_as_such(
    fake: FakeKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    """--signing and `remove` ask about signing keys alone, never with the id of a sealing key."""
    fake.verdicts = [KeyringVerdict(status="accepted", key_id=NEW_SIGNER)]
    assert result(capsys, "rotate", "--signing") == (0, {"key_id": NEW_SIGNER})
    error = ErrorDetail(code="conflict", message="it is in force")
    fake.verdicts = [
        KeyringVerdict(status="accepted", key_id=NEW_SIGNER),
        KeyringVerdict(status="refused", error=error),
    ]
    assert result(capsys, "remove", SIGNER) == (0, {"key_id": NEW_SIGNER})
    assert result(capsys, "remove", NEW_SIGNER)[1]["error"]["message"] == "it is in force"
    assert fake.asked == [
        ("api.keyring.rotate", {"kind": "signing", "in_force": SIGNER}),
        ("api.keyring.remove", {"key_id": SIGNER}),
        ("api.keyring.remove", {"key_id": NEW_SIGNER}),
    ]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The directory of a `caravan up` that runs its services as one process."""
    folder = tmp_path / "data"
    (folder / "credentials").mkdir(parents=True)
    record = LocalClusterRecord(pid=1, url="nats://127.0.0.1:1", data_dir=str(folder))
    (folder / "up.json").write_bytes(msgspec.json.encode(record))
    (folder / "cluster.json").write_text('{"format": 1, "cluster_id": "c"}')
    accounts.write_credentials(folder / "credentials" / "services.json", accounts.new_credentials())
    return folder


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No keeper is configured in the environment."""
    for name in ("KEEPER_DIR", "KEEPER_KEK_COMMAND", "CLUSTER_ID", "CREDENTIALS"):
        monkeypatch.delenv(f"CARAVAN_{name}", raising=False)


def test_the_place_is_that_of_a_local_cluster(data_dir: Path) -> None:
    """Address, login, folder and cluster are those of the data directory."""
    place = keyring_files._place(str(data_dir))
    assert (place.run.nats_url, place.cluster_id) == ("nats://127.0.0.1:1", "c")
    assert place.run.credentials == str(data_dir / "credentials" / "services.json")
    assert place.keeper.dir == str(data_dir / "keeper")
    (data_dir / "up.json").unlink()
    with pytest.raises(CliError, match="no cluster of `caravan up` runs"):
        keyring_files._place(str(data_dir))


def test_the_place_is_that_of_the_environment(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the keeper's settings; which cluster it is must be known, but for a rewrapping. --data-dir wins."""
    monkeypatch.setenv("CARAVAN_KEEPER_DIR", "/keeper")
    with pytest.raises(CliError, match="CARAVAN_CLUSTER_ID"):
        keyring_files._place("")
    assert keyring_files._place("", needs_cluster=False).keeper.dir == "/keeper"
    monkeypatch.setenv("CARAVAN_CLUSTER_ID", "d")
    assert keyring_files._place("").cluster_id == "d"
    assert keyring_files._place(str(data_dir)).cluster_id == "c"


def test_a_next_key_is_made_once(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--prepare writes `kek.next` for its owner alone, and leaves one that is there."""
    words = ("rewrap", "--prepare", "--data-dir", str(data_dir))
    code, found = result(capsys, *words)
    file = data_dir / "keeper" / "kek.next"
    assert (code, found) == (0, {"file": str(file)})
    assert file.stat().st_mode & 0o777 == 0o600
    made = file.read_text()
    assert result(capsys, *words)[0] == 0 and file.read_text() == made


def test_a_passphrase_is_no_argument(
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is a line of a file, or asked for twice on a terminal; elsewhere a file is required."""
    got: list[str] = []

    def export(_place: object, file: Path, passphrase: str) -> keyring_tool.ExportedFile:
        del file
        got.append(passphrase)
        return keyring_tool.ExportedFile(3, 0)

    monkeypatch.setattr(keyring_tool, "export_keyring", export)
    file = tmp_path / "out"
    words = ("export", str(file), "--data-dir", str(data_dir))
    (tmp_path / "pass").write_text(" with spaces \n")
    code, found = result(capsys, *words, "--passphrase-file", str(tmp_path / "pass"))
    assert (code, found) == (0, {"file": str(file), "keys": 3, "damaged": 0})
    assert result(capsys, *words)[1]["error"]["code"] == "usage"
    typed = iter(("one", "one", "one", "two"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("getpass.getpass", lambda _prompt: next(typed))
    assert result(capsys, *words)[0] == 0
    assert result(capsys, *words)[1]["error"]["message"] == "the two passphrases differ"
    assert got == [" with spaces ", "one"]
    file.touch()
    assert "is not overwritten" in result(capsys, *words)[1]["error"]["message"]
