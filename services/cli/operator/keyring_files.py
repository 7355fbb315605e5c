"""`caravan operator keyring rewrap`, `export` and `import`: on the machine of a keeper, with its folder and its login.

No key goes to a client of the bus, so these do not ask the keeper: they work on the key store beside it.
"""

import getpass
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from services.cli.local.cluster import ClusterIdentity
from services.cli.local.processes import SERVICES
from services.cli.runtime import local_clusters
from services.cli.runtime.bus_client import selected_bus_url
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.process.settings import run_settings, settings_from

_KEEPER = "CARAVAN_KEEPER_"


class RewrapResult(msgspec.Struct, frozen=True, kw_only=True):
    """`operator keyring rewrap --json`. `unreadable`: entries that neither key opens; they stay."""

    moved: int
    unreadable: int


class PrepareResult(msgspec.Struct, frozen=True, kw_only=True):
    """`operator keyring rewrap --prepare --json`."""

    file: str


class KeyringExportResult(msgspec.Struct, frozen=True, kw_only=True):
    """`operator keyring export --json`. `damaged`: entries that do not open, and are not in the file."""

    file: str
    keys: int
    damaged: int


class KeyringImportResult(msgspec.Struct, frozen=True, kw_only=True):
    """`operator keyring import --json`."""

    keys: int


def rewrap(out: CommandOutput, *, data_dir: str, prepare: bool) -> int:
    """Wrap every key by the next key-encryption key."""
    tool, place = _tool(), _place(data_dir, needs_cluster=False)
    if prepare:
        file = str(tool.prepare_next_kek(place))
        out.result(PrepareResult(file=file))
        out.line(f"the next key-encryption key is {file}: back it up, and copy it to every keeper")
        return 0
    done = tool.rewrap_keyring(place)
    out.result(RewrapResult(moved=done.moved, unreadable=done.unreadable))
    out.line(f"{done.moved} entries wrapped anew; the former key opens none of them", "green")
    if done.unreadable:
        out.line(f"{done.unreadable} entries open with neither key and were left", "yellow")
    return 0


def export(out: CommandOutput, *, file: str, data_dir: str, passphrase_file: str) -> int:
    """Write every key into a file that a passphrase opens."""
    tool, place = _tool(), _place(data_dir)
    if Path(file).exists():
        raise CliError("usage", "the file exists, and is not overwritten", file=file)
    passphrase = _passphrase(passphrase_file, is_new=True)
    done = tool.export_keyring(place, Path(file), passphrase)
    out.result(KeyringExportResult(file=file, keys=done.keys, damaged=done.damaged))
    out.line(f"{done.keys} keys are in {file}", "green")
    if done.damaged:
        out.line(f"{done.damaged} entries do not open, and are not in it", "yellow")
    return 0


def import_file(out: CommandOutput, *, file: str, data_dir: str, passphrase_file: str) -> int:
    """Write the keys of a file into an empty key store."""
    tool, place = _tool(), _place(data_dir)
    keys = tool.import_keyring(place, Path(file), _passphrase(passphrase_file, is_new=False))
    out.result(KeyringImportResult(keys=keys))
    out.line(f"{keys} keys are in the key store; a running keeper opens it within 10 s", "green")
    return 0


def _tool() -> Any:
    """What works on the key store, which is the keeper's: a service knows no other service."""
    return import_module("services.keeper.keyring_tool")


def _place(data_dir: str, *, needs_cluster: bool = True) -> Any:
    """Settings of the keeper: of the folder of a `caravan up`, else of the environment. Raises CliError."""
    tool = _tool()
    has_settings = any(f"{_KEEPER}{name}" in os.environ for name in ("DIR", "KEK_COMMAND"))
    if data_dir or not has_settings:
        return _place_of_up(tool, data_dir)
    cluster_id = os.environ.get("CARAVAN_CLUSTER_ID", "")
    if needs_cluster and not cluster_id:
        text = "CARAVAN_CLUSTER_ID must be set: `caravan operator status` shows the id"
        raise CliError("config", text)
    own = settings_from(tool.KeeperSettings, prefix=_KEEPER)
    return tool.KeyringPlace(run=run_settings(), keeper=own, cluster_id=cluster_id)


def _place_of_up(tool: Any, data_dir: str) -> Any:
    """Of a `caravan up` that runs on this machine. Raises CliError."""
    if data_dir:
        up = local_clusters.read_record(Path(data_dir))
    else:
        up = local_clusters.running_at(selected_bus_url())
    if up is None:
        text = f"no cluster of `caravan up` runs in {data_dir}" if data_dir else "no keeper is here"
        way = "run it where the keeper is, with its settings (CARAVAN_KEEPER_DIR) or --data-dir"
        raise CliError("config", f"{text}: {way}")
    folder = Path(up.data_dir)
    identity = msgspec.json.decode((folder / "cluster.json").read_bytes(), type=ClusterIdentity)
    logins = [folder / "credentials" / f"{name}.json" for name in ("keeper", SERVICES)]
    login = next((one for one in logins if one.exists()), logins[0])
    run = msgspec.structs.replace(run_settings(), nats_url=up.url, credentials=str(login))
    own = tool.KeeperSettings(dir=str(folder / "keeper"))
    return tool.KeyringPlace(run=run, keeper=own, cluster_id=identity.cluster_id)


def _passphrase(file: str, *, is_new: bool) -> str:
    """Read the passphrase, from a file or the terminal; never from an argument. Raises CliError."""
    if file:
        text = Path(file).read_text(encoding="utf-8")
        return text.removesuffix("\n").removesuffix("\r")
    if not sys.stdin.isatty():
        raise CliError("usage", "--passphrase-file is required where stdin is no terminal")
    found = getpass.getpass("Passphrase: ")
    if is_new and getpass.getpass("Passphrase again: ") != found:
        raise CliError("usage", "the two passphrases differ")
    return found
