"""`caravan operator bootstrap` and `create`: what a cluster of containers starts from, made once.

Decides which secret goes into which file, so that each container gets its own and no other; and that the streams of the
log are created once in a cluster's life: where they are missing later, data was lost, and that must be said. Must not
know how containers are run: deploy/compose.yaml names the files.

    DIR/nats.conf        config of the bus, no secrets        DIR/ROLE.json, agent-NODE.json  one login each
    DIR/passwords.conf   what the config includes             DIR/cluster.env           cluster id, bus, replicas
    DIR/credentials.json all passwords; for the owner alone   DIR/url                   bus and login of PUBLIC
"""

import asyncio
import os
import re
import secrets
import time
from pathlib import Path
from uuid import uuid4

import msgspec

from schemas.envelope import CORE_VERSION
from services.cli.cluster import FORMAT, Identity
from services.cli.output import CliError, Output
from shared.bus import accounts, streams
from shared.bus.connect import BusClient, Login, connect
from shared.bus.runner import RunSettings, run_settings
from shared.bus.server import render_compose
from shared.errors import BusUnavailable

#: The folder is closed to everybody else; its files are mounted one by one into containers that run as another user.
_FOLDER_MODE, _FILE_MODE = 0o700, 0o444
_NODE_ID = re.compile(r"[a-z][a-z0-9-]{0,62}")
_CREATE_S = 60.0
_AGAIN_S = 0.5


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    """`cluster.json` of the folder: what later runs must not change."""

    cluster_id: str
    servers: int


def bootstrap(out: Output, *, directory: str, nodes: str, servers: int, port: int) -> int:
    """Write config and secrets; again: add nodes, keep everything else. Raises CliError."""
    if servers not in (1, 3):
        raise CliError("usage", "--servers is 1, or 3 for a bus that survives the loss of one")
    node_ids = tuple(sorted({name.strip() for name in nodes.split(",") if name.strip()}))
    for node_id in node_ids:
        if not _NODE_ID.fullmatch(node_id):
            raise CliError(
                "usage", f"node id {node_id!r} is not made of small letters, digits and dashes"
            )
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
    folder.chmod(_FOLDER_MODE)
    made = _identity(folder, servers)
    known = _credentials(folder, node_ids)
    _write_all(folder, made, known, port)
    out.result(
        {"directory": str(folder), "cluster_id": made.cluster_id, "nodes": sorted(known.nodes)}
    )
    out.line(
        f"cluster {made.cluster_id}: {made.servers} server(s), nodes {', '.join(known.nodes)}",
        "green",
    )
    out.line(f"secrets are in {folder}; the command line finds the bus by")
    out.line(f"  export CARAVAN_NATS_URL=$(cat {folder / 'url'})", "cyan")
    return 0


def create(out: Output, *, state: str) -> int:
    """Create the streams of a new cluster, or check those of an old one. Raises CliError, BusRefused.

    `state` is a folder that outlives the bus's own data: it remembers that the streams were created.
    """
    cluster_id = os.environ.get("CARAVAN_CLUSTER_ID", "")
    if not cluster_id:
        raise CliError("config", "CARAVAN_CLUSTER_ID is not set")
    marker = Path(state) / "cluster.json"
    known = Identity(format=FORMAT, cluster_id=cluster_id, core=CORE_VERSION)
    if marker.exists():
        known = msgspec.json.decode(marker.read_bytes(), type=Identity)
    if known.cluster_id != cluster_id:
        raise CliError(
            "config", f"{marker} belongs to cluster {known.cluster_id}, not {cluster_id}"
        )
    asyncio.run(_create(run_settings(), is_new=not known.bootstrapped))
    if not known.bootstrapped:
        done = msgspec.structs.replace(known, bootstrapped=True)
        fresh = marker.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(done) + b"\n")
        fresh.replace(marker)
    said = "checked" if known.bootstrapped else "created"
    out.result({"cluster_id": cluster_id, "streams": said})
    out.line(f"cluster {cluster_id}: streams {said}")
    return 0


async def _create(settings: RunSettings, *, is_new: bool) -> None:
    """Wait for the bus, at most a minute; three servers need a moment to agree who leads."""
    user, password = settings.nats_user, settings.nats_password
    if settings.credentials:
        user, password = accounts.read_credentials(Path(settings.credentials)).login(accounts.ADMIN)
    login = Login(url=settings.nats_url, user=user, password=password)
    deadline = time.monotonic() + _CREATE_S
    while True:
        client: BusClient | None = None
        try:
            client = await connect(login)
            if is_new:
                await streams.bootstrap(client, replicas=settings.replicas)
            else:
                await streams.ensure(client, settings.replicas)
        except streams.BusRefused:
            raise
        except BusUnavailable:
            if time.monotonic() > deadline:
                raise
        else:
            return
        finally:
            if client is not None:
                await client.end()
        await asyncio.sleep(_AGAIN_S)


def _identity(folder: Path, servers: int) -> _Made:
    path = folder / "cluster.json"
    if not path.exists():
        return _Made(cluster_id=str(uuid4()), servers=servers)
    made = msgspec.json.decode(path.read_bytes(), type=_Made)
    if made.servers != servers:
        raise CliError("config", f"{folder} was made for {made.servers} server(s), not {servers}")
    return made


def _credentials(folder: Path, node_ids: tuple[str, ...]) -> accounts.Credentials:
    path = folder / "credentials.json"
    known = accounts.read_credentials(path) if path.exists() else accounts.new_credentials()
    if accounts.ROUTE not in known.users:
        users = {**known.users, accounts.ROUTE: secrets.token_hex(16)}
        known = msgspec.structs.replace(known, users=users)
    known = known.with_fleet()
    for node_id in node_ids:
        known = known.with_node(node_id)
    accounts.write_credentials(path, known)
    return known


def _write_all(folder: Path, made: _Made, known: accounts.Credentials, port: int) -> None:
    hosts = tuple(f"nats-{number}" for number in range(1, made.servers + 1))
    files = {
        "nats.conf": render_compose(tuple(sorted(known.nodes)), made.servers),
        accounts.PASSWORDS_FILE: accounts.render_passwords(
            known, hosts if made.servers > 1 else ()
        ),
        "cluster.env": (
            f"CARAVAN_CLUSTER_ID={made.cluster_id}\n"
            f"CARAVAN_NATS_URL={','.join(f'nats://{host}:4222' for host in hosts)}\n"
            f"CARAVAN_REPLICAS={made.servers}\n"
        ),
        "url": ",".join(
            f"nats://{accounts.PUBLIC}:{known.users[accounts.PUBLIC]}@127.0.0.1:{port + at}"
            for at in range(made.servers)
        )
        + "\n",
        "cluster.json": msgspec.json.encode(made).decode() + "\n",
    }
    for role in (*accounts.ROLES, accounts.ADMIN):
        files[f"{role}.json"] = msgspec.json.encode(known.of_user(role)).decode() + "\n"
    for node_id in known.nodes:
        own = known.of_node(node_id)
        files[f"agent-{node_id}.json"] = msgspec.json.encode(own).decode() + "\n"
    for name, text in files.items():
        fresh = folder / f"{name}.new"
        fresh.unlink(missing_ok=True)
        fresh.write_text(text)
        fresh.chmod(_FILE_MODE)
        fresh.replace(folder / name)
