"""`caravan operator bootstrap` and `operator create`: configuration, secrets and streams of a cluster of containers.

Each container gets a file with its own secrets only (deploy/compose.yaml mounts them). The streams of the log are
created once in a cluster's life: if they are missing later, data was lost, which is an error.

    DIR/nats.conf        config of the bus, no secrets        DIR/ROLE.json, agent-NODE.json  one login each
    DIR/passwords.conf   what the config includes             DIR/cluster.env           cluster id, bus, replicas
    DIR/credentials.json all passwords; readable by the owner   DIR/url, url-NAME         bus and login of a client
"""

import asyncio
import os
import re
import time
from pathlib import Path
from uuid import uuid4

import msgspec

from schemas.envelope import CORE_VERSION
from services.cli.local.cluster import (
    DATA_DIR_FORMAT,
    ClusterIdentity,
    complete_credentials,
    write_identity,
)
from services.cli.runtime.bus_notices import which_answer
from services.cli.runtime.hints import COMPOSE
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.connection.nats_client import BusClient, Login, connect, url_with_login
from shared.bus.jetstream import streams
from shared.bus.process.settings import RunSettings, run_settings
from shared.bus.server import accounts
from shared.bus.server.nats_server import render_compose
from shared.errors import BusUnavailable

#: Only the owner may enter the folder; its files are mounted one by one into containers that run as another user.
_FOLDER_MODE, _FILE_MODE = 0o700, 0o444
#: URLs are mounted nowhere; agents read their login as root, and their tasks must not.
_OWNERS_ALONE = ("url", "agent-")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_CREATE_S = 60.0
_AGAIN_S = 0.5
_OLD_SECRETS = (
    "the container of the bus was created with other secrets: create it again "
    f"(`{COMPOSE} up -d --no-deps --force-recreate nats-1`)"
)
_START_SERVERS = f"`{COMPOSE} up -d` starts all three where `COMPOSE_PROFILES` names `cluster`"
_LOOK_AT_BUS = f"`{COMPOSE} logs nats-1` tells more"


class _BootstrapRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`cluster.json` of the folder: what later runs must not change."""

    cluster_id: str
    servers: int


class BootstrapResult(msgspec.Struct, frozen=True):
    """`operator bootstrap --json`."""

    directory: str
    cluster_id: str
    nodes: list[str]


class CreateResult(msgspec.Struct, frozen=True):
    """`operator create --json`. `streams`: created or checked."""

    cluster_id: str
    streams: str


def bootstrap(
    out: CommandOutput, *, directory: str, nodes: str, clients: str, servers: int, port: int
) -> int:
    """Write configuration and secrets; a second run only adds nodes and clients. Raises CliError."""
    if servers not in (1, 3):
        raise CliError(
            "usage", "--servers must be 1, or 3 for a bus that survives the loss of one server"
        )
    node_ids, client_names = _names("node id", nodes), _names("client", clients)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
    folder.chmod(_FOLDER_MODE)
    made = _identity(folder, servers)
    known = complete_credentials(folder, node_ids, client_names, has_routes=True)
    _write_all(folder, made, known, port)
    out.result(BootstrapResult(str(folder), made.cluster_id, sorted(known.nodes)))
    out.line(
        f"cluster {made.cluster_id}: {made.servers} server(s), nodes {', '.join(known.nodes)}",
        "green",
    )
    out.line(f"secrets are in {folder}; the command line needs:")
    out.line(f"  CARAVAN_NATS_URL=$(cat {folder / 'url'}) && export CARAVAN_NATS_URL", "cyan")
    return 0


def _names(what: str, text: str) -> tuple[str, ...]:
    """Read names with commas between. Raises CliError."""
    found = tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))
    for name in found:
        if not _NAME.fullmatch(name):
            text = f"{what} {name!r} must consist of lower-case letters, digits and dashes"
            raise CliError("usage", text)
    return found


def create(out: CommandOutput, *, state: str) -> int:
    """Create the streams of a new cluster, or check those of an existing one. Raises CliError.

    `state` is a folder apart from the data of the bus; it records that the streams were created.
    """
    cluster_id = os.environ.get("CARAVAN_CLUSTER_ID", "")
    if not cluster_id:
        text = "CARAVAN_CLUSTER_ID is not set: it is in cluster.env, which `caravan operator bootstrap` writes"
        raise CliError("config", text)
    marker = Path(state) / "cluster.json"
    known = ClusterIdentity(format=DATA_DIR_FORMAT, cluster_id=cluster_id, core=CORE_VERSION)
    if marker.exists():
        known = msgspec.json.decode(marker.read_bytes(), type=ClusterIdentity)
    if known.cluster_id != cluster_id:
        text = f"{marker} belongs to cluster {known.cluster_id}, not {cluster_id}"
        way = "use the secrets of that cluster (CARAVAN_SECRETS), or another project name for a new one (-p NAME)"
        raise CliError("config", f"{text}; {way}")
    asyncio.run(_create(out, run_settings(), is_new=not known.bootstrapped))
    if not known.bootstrapped:
        write_identity(marker, msgspec.structs.replace(known, bootstrapped=True))
    verb = "checked" if known.bootstrapped else "created"
    out.result(CreateResult(cluster_id, verb))
    out.line(f"cluster {cluster_id}: streams {verb}")
    return 0


async def _create(out: CommandOutput, settings: RunSettings, *, is_new: bool) -> None:
    """Create or check the streams; waits up to a minute for the bus to elect its leader, and says so.

    Raises CliError with the way out.
    """
    user, password = settings.nats_user, settings.nats_password
    if settings.credentials:
        user, password = accounts.read_credentials(Path(settings.credentials)).login(accounts.ADMIN)
    login = Login(url=settings.nats_url, user=user, password=password)
    deadline = time.monotonic() + _CREATE_S
    said = ""
    while True:
        client: BusClient | None = None
        try:
            client = await connect(login)
            if is_new:
                await streams.bootstrap(client, replicas=settings.replicas)
            else:
                await streams.ensure(client, settings.replicas)
        except streams.BusRefused as err:
            raise CliError("failed", f"{err}; {way_out(err, is_new=is_new)}") from err
        except BusUnavailable as err:
            if "authorization" in str(err).lower():
                raise CliError("unavailable", f"{err}; {_OLD_SECRETS}") from err
            if not said:
                said = f"waiting for the bus, up to {_CREATE_S:.0f} s: {err}"
                out.note(said)
            if time.monotonic() > deadline:
                away = await which_answer(settings.nats_url)
                way = f"{away} ({_START_SERVERS})" if away else _LOOK_AT_BUS
                text = f"asked for {_CREATE_S:.0f} s: {err}"
                raise CliError("unavailable", f"{text}; {way}") from err
        else:
            return
        finally:
            if client is not None:
                await client.end()
        await asyncio.sleep(_AGAIN_S)


def way_out(err: streams.BusRefused, *, is_new: bool) -> str:
    """What to do about a bus that is not the one of this cluster."""
    if "num_replicas" in str(err):
        text = "a cluster keeps the number of servers that it was created for"
        return f"{text}: use `operator bootstrap --servers` as then, or begin another cluster"
    if is_new:
        return "these streams are of another cluster or release: begin with empty volumes"
    return "the bus has lost its store: restore a copy (docs/operations.md, Back up)"


def _identity(folder: Path, servers: int) -> _BootstrapRecord:
    path = folder / "cluster.json"
    if not path.exists():
        return _BootstrapRecord(cluster_id=str(uuid4()), servers=servers)
    made = msgspec.json.decode(path.read_bytes(), type=_BootstrapRecord)
    if made.servers != servers:
        text = f"{folder} was made for {made.servers} server(s), not {servers}"
        way = f"repeat --servers {made.servers}, or write a new cluster with --directory"
        raise CliError("config", f"{text}: a cluster keeps its number of servers; {way}")
    return made


def _write_all(
    folder: Path, made: _BootstrapRecord, known: accounts.Credentials, port: int
) -> None:
    hosts = tuple(f"nats-{number}" for number in range(1, made.servers + 1))
    published = ",".join(f"nats://127.0.0.1:{port + at}" for at in range(made.servers))
    files = {
        "nats.conf": render_compose(
            tuple(sorted(known.nodes)), made.servers, tuple(sorted(known.clients))
        ),
        accounts.PASSWORDS_FILE: accounts.render_passwords(
            known, hosts if made.servers > 1 else ()
        ),
        "cluster.env": (
            f"CARAVAN_CLUSTER_ID={made.cluster_id}\n"
            f"CARAVAN_NATS_URL={','.join(f'nats://{host}:4222' for host in hosts)}\n"
            f"CARAVAN_REPLICAS={made.servers}\n"
        ),
        "url": url_with_login(published, *known.login(accounts.PUBLIC)) + "\n",
        **{
            f"url-{name}": url_with_login(published, name, secret) + "\n"
            for name, secret in known.clients.items()
        },
        "cluster.json": msgspec.json.encode(made).decode() + "\n",
    }
    for role in (*accounts.ROLES, accounts.ADMIN):
        files[f"{role}.json"] = msgspec.json.encode(known.only_user(role)).decode() + "\n"
    for node_id in known.nodes:
        own = known.of_node(node_id)
        files[f"agent-{node_id}.json"] = msgspec.json.encode(own).decode() + "\n"
    for name, text in files.items():
        fresh = folder / f"{name}.new"
        fresh.unlink(missing_ok=True)
        fresh.write_text(text)
        fresh.chmod(0o400 if name.startswith(_OWNERS_ALONE) else _FILE_MODE)
        fresh.replace(folder / name)
