"""Accounts, users and permissions of the bus, rendered as the server's config text.

The permissions on the bus. CORE holds JetStream and the roles, NODES the agents, PUBLIC every other client;
they are joined by exports and imports only, because inside one account any publisher writes into a stream by
naming it as reply subject. Inside CORE each role has its own user, and only plan_applier publishes to the
log. Next: `nats_server.py`.

A node that joins later gets its user by `Credentials.with_node`, a rewritten config and a SIGHUP
(`NatsServer.reload`).
"""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shared.bus.jetstream import streams
from shared.errors import ConfigInvalid
from shared.protocol import subjects
from shared.protocol.id_tokens import id_token
from shared.protocol.operator_verbs import NOUNS

ROLES = (
    *("intake", "eval_broker", "scheduler", "plan_applier", "heartbeat", "timekeeper", "view"),
    *("gateway", "keeper"),
)
ADMIN, SYS, PUBLIC = "admin", "sys", "public"
#: Speaks for any node: a fleet of simulated ones, in one process.
FLEET = "fleet"
#: Beside the config of servers in containers, and included by it: the only part of it that is secret.
PASSWORDS_FILE = "passwords.conf"
ROUTE, ROUTE_PASSWORD, ROUTES = "route", "$CARAVAN_NATS_PASSWORD_ROUTE", "$CARAVAN_NATS_ROUTES"
#: Exports name the log's generations one by one: a wildcard would be a token of its own.
GENERATIONS = streams.GENERATIONS
#: All clients of PUBLIC together. The server cannot limit rates: the queues of intake and view bound the requests.
PUBLIC_CONNECTIONS_MAX, PUBLIC_SUBSCRIPTIONS_MAX = 2_000, 100_000
#: Answers to one request, and how long after it: a follower of a log may stay for a day.
ANSWERS_MAX, ANSWERS_TIME = 1_000_000, "24h"


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Passwords of one cluster by user name; of nodes by node id. Kept in a file that only its owner reads.

    `clients`: further users of PUBLIC, each with inboxes of its own.
    """

    users: dict[str, str]
    nodes: dict[str, str] = {}
    clients: dict[str, str] = {}

    def with_node(self, node_id: str) -> "Credentials":
        """Return credentials that hold a user for `node_id`, the present one where there is one."""
        if node_id in self.nodes:
            return self
        return msgspec.structs.replace(self, nodes={**self.nodes, node_id: secrets.token_hex(16)})

    def with_client(self, name: str) -> "Credentials":
        """Return credentials that hold a client of this name. Raises ConfigInvalid for a name that is taken."""
        if name in (*ROLES, ADMIN, SYS, PUBLIC, FLEET, ROUTE) or name.startswith("node-"):
            raise ConfigInvalid(f"{name!r} is a user of the cluster itself, not a client")
        if name in self.clients:
            return self
        clients = {**self.clients, name: secrets.token_hex(16)}
        return msgspec.structs.replace(self, clients=clients)

    def with_later_users(self) -> "Credentials":
        """Return credentials that hold every user of a new cluster; those of an older release lack some."""
        missing = [name for name in (*ROLES, FLEET) if name not in self.users]
        if not missing:
            return self
        users = {**self.users, **{name: secrets.token_hex(16) for name in missing}}
        return msgspec.structs.replace(self, users=users)

    def login(self, name: str) -> tuple[str, str]:
        """Return (user, password) of a role, admin, sys or public. Raises ConfigInvalid for an unknown name."""
        if name not in self.users:
            raise ConfigInvalid(
                f"no credentials for {name!r}; expected one of {', '.join(sorted(self.users))}"
            )
        return name, self.users[name]

    def node_login(self, node_id: str) -> tuple[str, str]:
        """Return (user, password) of a node's agent. Raises ConfigInvalid for an unknown node."""
        if node_id not in self.nodes:
            raise ConfigInvalid(f"no credentials for node {node_id!r}")
        return node_user(node_id), self.nodes[node_id]

    def only_user(self, name: str) -> "Credentials":
        """Return what this user of CORE needs and nothing else; the plan applier asks the system account too."""
        return self.only_users((name,))

    def only_users(self, names: Sequence[str]) -> "Credentials":
        """Return what these users of CORE need, for a process of several roles."""
        asked = (*names, SYS) if "plan_applier" in names else names
        return Credentials(users={one: self.login(one)[1] for one in asked})

    def of_node(self, node_id: str) -> "Credentials":
        """Return what this node's agent needs and nothing else."""
        return Credentials(users={}, nodes={node_id: self.node_login(node_id)[1]})


class BusUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user with everything it may publish and subscribe; `None`: anything in its account."""

    name: str
    password: str
    publish: tuple[str, ...] | None
    subscribe: tuple[str, ...] | None
    #: may answer requests: so often, so long (a stream of answers is one request).
    answers: bool = False


def new_credentials(node_ids: tuple[str, ...] = ()) -> Credentials:
    """Draw passwords for a new cluster."""
    names = (*ROLES, ADMIN, SYS, PUBLIC, FLEET)
    made = Credentials(users={name: secrets.token_hex(16) for name in names})
    for node_id in node_ids:
        made = made.with_node(node_id)
    return made


def environment_credentials(
    node_ids: tuple[str, ...], clients: tuple[str, ...] = ()
) -> Credentials:
    """Name where the server finds passwords: `$CARAVAN_NATS_PASSWORD_<USER>`, `_NODE_<ID>`, `_CLIENT_<NAME>`.

    `render_passwords` gives the values; ids are small letters, digits and dashes.

    In its environment each would have to begin with a letter: the server reads what looks like a number as one.
    """
    prefix = "$CARAVAN_NATS_PASSWORD_"
    names = (*ROLES, ADMIN, SYS, PUBLIC, FLEET)
    return Credentials(
        users={name: prefix + name.upper() for name in names},
        nodes={node: f"$CARAVAN_NATS_NODE_{_variable(node)}" for node in node_ids},
        clients={name: f"$CARAVAN_NATS_CLIENT_{_variable(name)}" for name in clients},
    )


def _variable(name: str) -> str:
    return name.upper().replace("-", "_")


def render_passwords(credentials: Credentials, servers: tuple[str, ...] = ()) -> str:
    """Render the values of the names in `environment_credentials`; with `servers` (host names) also their routes.

    Nothing more: the server refuses a name that its config does not use.
    """
    named = environment_credentials(tuple(credentials.nodes), tuple(credentials.clients))
    pairs = [(name, credentials.users[user]) for user, name in named.users.items()]
    pairs += [(name, credentials.nodes[node]) for node, name in sorted(named.nodes.items())]
    pairs += [(name, credentials.clients[one]) for one, name in sorted(named.clients.items())]
    if servers:
        pairs.append((ROUTE_PASSWORD, credentials.users[ROUTE]))
    lines = [f'{name.removeprefix("$")}: "{secret}"' for name, secret in pairs]
    if servers:
        secret = credentials.users[ROUTE]
        routes = _list(tuple(f"nats://{ROUTE}:{secret}@{host}:6222" for host in servers))
        lines.append(f"{ROUTES.removeprefix('$')}: {routes}")
    return "\n".join(lines) + "\n"


def write_credentials(path: Path, credentials: Credentials) -> None:
    """Write the file with permissions of its owner alone, from the first byte."""
    _write_secret(path, msgspec.json.format(msgspec.json.encode(credentials, order="sorted")))


def write_password(path: Path, credentials: Credentials, name: str) -> None:
    """Write one user's password alone, as text, for its owner. Raises ConfigInvalid for an unknown name."""
    _write_secret(path, f"{credentials.login(name)[1]}\n".encode())


def _write_secret(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)
    fresh.replace(path)


def read_credentials(path: Path) -> Credentials:
    """Read the file. Raises ConfigInvalid if it is missing or invalid."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Credentials)
    except (OSError, msgspec.DecodeError) as err:
        raise ConfigInvalid(f"credentials file {path}: {err}") from err


def node_user(node_id: str) -> str:
    """User name of a node's agent."""
    return f"node-{id_token(node_id)}"


def inbox_prefix(name: str) -> str:
    """Prefix of the inboxes of a user: no other user of its account may listen there."""
    return f"_INBOX.{name}"


# ---- permissions ----

_REPLIES = ("_INBOX.>", "_R_.>")
#: Where services are, their names, and which revision each variable has: public within the cluster, so that templates
#: of any node may name any service. The items of variables are asked of the keeper.
_DIRECTORY = (subjects.VIEW_SERVICES, subjects.VIEW_SERVICE_NAMES, subjects.VIEW_VARIABLES)


def _reads(stream: str) -> tuple[str, ...]:
    """Follow a stream by consumers of one's own."""
    return (
        subjects.js_consumer_create(stream, ">"),
        subjects.js_consumer_next(stream, "*"),
        subjects.js_message_get(stream),
    )


def _log_reads() -> tuple[str, ...]:
    names = [subjects.log_stream(g) for g in GENERATIONS]
    return tuple(
        subject for name in names for subject in (subjects.js_direct_get(name), *_reads(name))
    )


def _core_publish(role: str) -> tuple[str, ...]:
    """What every role may publish: reading the log, ensuring streams, leadership, presence, dead letters."""
    leader = streams.LEADER.name
    return (
        subjects.js_stream_info("*"),
        *(subjects.js_stream_create(one.name) for one in streams.ENSURED),
        *_log_reads(),
        subjects.js_direct_get(streams.SNAP.name),
        subjects.leader(role),
        subjects.leader(f"{role}.>"),
        subjects.js_message_get(leader),
        subjects.js_message_delete(leader),
        subjects.presences(role),
        subjects.DEAD_ALL,
    )


def _own_publish(role: str) -> tuple[str, ...]:
    """What only this role may publish."""
    match role:
        case "intake":
            return (
                subjects.command("job"),
                *_reads(streams.JOBS.name),
                subjects.js_stream_purge(streams.JOBS.name),
                *_REPLIES,
            )
        case "eval_broker":
            return (subjects.command("evaluation"), subjects.LEASES)
        case "scheduler":
            # Evaluations only to fail those that cannot be decided.
            commands = subjects.command("plan"), subjects.command("evaluation")
            return (*commands, *_reads(streams.EVAL.name))
        case "plan_applier":
            logs = tuple(subjects.log_all(g) for g in GENERATIONS)
            # The first one is made with the cluster, the others where an operator has the log rolled.
            rolls = tuple(
                subjects.js_stream_create(subjects.log_stream(g)) for g in GENERATIONS[1:]
            )
            return (*logs, *rolls, *_reads(streams.CMD.name))
        case "heartbeat":
            return (subjects.command("liveness"),)
        case "timekeeper":
            return (subjects.command("timer"),)
        case "keeper":
            # It alone reads and writes wrapped keys, and erases them one by one.
            return (
                subjects.command("variable"),
                subjects.js_stream_create(streams.KEYS.name),
                subjects.KEYS,
                subjects.js_direct_get(streams.KEYS.name),
                subjects.js_message_get(streams.KEYS.name),
                subjects.js_message_delete(streams.KEYS.name),
                *_REPLIES,
            )
        case "gateway":
            # It changes nothing: requests go out with the login of their caller. A task that logs in with its token has
            # none on the bus: the gateway reads the variables that are named after it.
            return (subjects.api("variable", "get"),)
        case "view":
            return (
                subjects.NODES,
                subjects.VIEWS,
                subjects.command("operator"),
                subjects.js_direct_get(streams.NODE.name, ">"),
                subjects.js_direct_get(streams.VIEW.name, ">"),
                *_reads(streams.DEAD.name),
                *(subjects.js_stream_create(one.name) for one in streams.OF_NODES),
                subjects.SNAPSHOTS,
                subjects.js_stream_purge(streams.SNAP.name),
                *_REPLIES,
            )
        case _:
            raise ValueError(f"{role!r} is not a role of the account CORE")


def _own_subscribe(role: str) -> tuple[str, ...]:
    """Subjects that a role subscribes to besides its inbox and presence."""
    match role:
        case "intake":
            return (subjects.API_JOBS_ALL,)
        case "keeper":
            return (
                subjects.API_VARIABLES,
                subjects.API_KEYRING,
                subjects.NODE_VARIABLES,
                subjects.NODE_IDENTITIES,
            )
        case "heartbeat":
            return (subjects.HEARTBEATS,)
        case "timekeeper":
            return (subjects.GAUGES,)
        case "view":
            asked = tuple(subjects.api(noun, "*") for noun in NOUNS)
            of_nodes = (subjects.NODE_QUERIES, subjects.NODE_DISK_SOURCES)
            return (subjects.QUERIES, *of_nodes, *asked)
        case _:
            return ()


def role_user(role: str, password: str) -> BusUser:
    """The CORE user of a role."""
    return BusUser(
        name=role,
        password=password,
        publish=(*_core_publish(role), *_own_publish(role)),
        subscribe=(f"{inbox_prefix(role)}.>", subjects.PRESENCES, *_own_subscribe(role)),
    )


def _directory_reads() -> tuple[str, ...]:
    """What nodes read by direct get: `_DIRECTORY` once more. Nothing else of VIEW (ADR 37)."""
    return tuple(subjects.js_direct_get(streams.VIEW.name, one) for one in _DIRECTORY)


def agent_user(node_id: str, password: str) -> BusUser:
    """The NODES user of one node's agent: every subject names its own token."""
    name = node_user(node_id)
    return BusUser(
        name=name,
        password=password,
        publish=(
            subjects.report(node_id),
            subjects.heartbeat(node_id),
            subjects.usage(node_id),
            subjects.node_shipped_logs(node_id),
            subjects.node_query(node_id),
            subjects.node_variables(node_id),
            subjects.node_identities(node_id),
            subjects.node_disk_sources(node_id),
            # The one place where a node reaches another: under its own name, which the asked one reads in the subject.
            *(subjects.node_disk("*", node_id, verb) for verb in subjects.NODE_DISK_VERBS),
            subjects.js_direct_get(streams.NODE.name, subjects.node(node_id)),
            *_directory_reads(),
        ),
        subscribe=(
            subjects.node(node_id),
            subjects.node_rpc(node_id, "*"),
            subjects.node_disk(node_id, "*", "*"),
            *_DIRECTORY,
            f"{inbox_prefix(name)}.>",
        ),
        answers=True,
    )


def fleet_user(password: str) -> BusUser:
    """The NODES user of a fleet: the permissions of agents for every node, without the requests of operators to tasks.

    A permission cannot name the beginning of a token, so it is not bound to a prefix of ids: a client with this user
    can speak for real nodes, too. The applier still refuses a host that is not a node's own.
    """
    return BusUser(
        name=FLEET,
        password=password,
        publish=(
            subjects.REPORTS,
            subjects.HEARTBEATS,
            subjects.query("job_version"),
            subjects.js_direct_get(streams.NODE.name, subjects.NODES),
            *_directory_reads(),
        ),
        subscribe=(subjects.NODES, *_DIRECTORY, f"{inbox_prefix(FLEET)}.>"),
    )


def public_user(password: str, name: str = PUBLIC) -> BusUser:
    """Public clients: submissions, queries, operator verbs, gauges, and reading what is public."""
    return BusUser(
        name=name,
        password=password,
        publish=(
            subjects.JOBS_ALL,
            subjects.API_ALL,
            subjects.QUERIES,
            subjects.NODE_RPC_ALL,
            subjects.GAUGES,
            *(subjects.js_direct_get(subjects.log_stream(g)) for g in GENERATIONS),
            subjects.js_direct_get(streams.NODE.name, subjects.NODES),
            subjects.js_direct_get(streams.VIEW.name),
            subjects.js_direct_get(streams.VIEW.name, subjects.VIEWS),
            subjects.js_direct_get(streams.SNAP.name),
            *(subjects.js_direct_get(one.name) for one in streams.OF_NODES),
        ),
        subscribe=(subjects.VIEWS, f"{inbox_prefix(name)}.>"),
    )


# ---- the config text ----


def _service(subject: str, *, stream: bool = False) -> str:
    return f'{{ service: "{subject}"{", response_type: stream" if stream else ""} }}'


def _imported(kind: str, subject: str, account: str = "CORE") -> str:
    return f'{{ {kind}: {{ account: {account}, subject: "{subject}" }} }}'


def _exports() -> list[str]:
    one_answer = (
        subjects.JOBS_ALL,
        subjects.API_ALL,
        subjects.QUERIES,
        subjects.NODE_QUERIES,
        subjects.NODE_VARIABLES,
        subjects.NODE_IDENTITIES,
        subjects.NODE_DISK_SOURCES,
        subjects.REPORTS,
        subjects.HEARTBEATS,
        subjects.USAGES,
        subjects.SHIPPED_LOGS,
        subjects.GAUGES,
        subjects.js_direct_get(streams.NODE.name, subjects.NODES),
        subjects.js_direct_get(streams.VIEW.name, subjects.VIEWS),
    )
    many = (
        *(subjects.js_direct_get(subjects.log_stream(g)) for g in GENERATIONS),
        subjects.js_direct_get(streams.VIEW.name),
        subjects.js_direct_get(streams.SNAP.name),
        *(subjects.js_direct_get(one.name) for one in streams.OF_NODES),
    )
    return [
        *(_service(s) for s in one_answer),
        *(_service(s, stream=True) for s in many),
        f'{{ stream: "{subjects.NODES}" }}',
        f'{{ stream: "{subjects.VIEWS}" }}',
    ]


def _node_imports() -> list[str]:
    asked = (
        subjects.REPORTS,
        subjects.HEARTBEATS,
        subjects.USAGES,
        subjects.SHIPPED_LOGS,
        # The fleet's, which speaks for any node.
        subjects.query("job_version"),
        subjects.NODE_QUERIES,
        subjects.NODE_VARIABLES,
        subjects.NODE_IDENTITIES,
        subjects.NODE_DISK_SOURCES,
        subjects.js_direct_get(streams.NODE.name, subjects.NODES),
        *_directory_reads(),
    )
    followed = (subjects.NODES, *_DIRECTORY)
    return [
        *(_imported("service", s) for s in asked),
        *(_imported("stream", s) for s in followed),
    ]


def _public_imports() -> list[str]:
    asked = public_user("").publish or ()
    return [
        *(_asked_service(s) for s in asked),
        _imported("stream", subjects.VIEWS),
    ]


def _asked_service(subject: str) -> str:
    """Import what PUBLIC asks; an agent is given the name of the user who asks, for its record of actions."""
    if _answers_in(subject) == "CORE":
        return _imported("service", subject)
    return f'{{ service: {{ account: NODES, subject: "{subject}" }}, share: true }}'


def _answers_in(subject: str) -> str:
    """Return the account that answers a subject of PUBLIC: `hands.*` is answered by agents."""
    return "NODES" if subject == subjects.NODE_RPC_ALL else "CORE"


def _list(items: tuple[str, ...]) -> str:
    return f"[{', '.join(msgspec.json.encode(item).decode() for item in items)}]"


def _user(user: BusUser) -> str:
    # `$NAME` is looked up in the server's environment, and must not be quoted for that.
    secret = user.password if user.password.startswith("$") else f'"{user.password}"'
    login = f'user: "{user.name}", password: {secret}'
    if user.publish is None or user.subscribe is None:
        return f"{{ {login} }}"
    allowed = f"publish: {_list(user.publish)}, subscribe: {_list(user.subscribe)}"
    if user.answers:
        allowed += f', allow_responses: {{ max: {ANSWERS_MAX}, expires: "{ANSWERS_TIME}" }}'
    return f"{{ {login}, permissions: {{ {allowed} }} }}"


def _block(name: str, lines: list[str]) -> str:
    return f"    {name}: [\n" + "".join(f"      {line}\n" for line in lines) + "    ]\n"


def render(credentials: Credentials) -> str:
    """Render the accounts part of a server's config. No client enters without a user (ADR 28)."""
    users = credentials.users
    admin = BusUser(name=ADMIN, password=users[ADMIN], publish=None, subscribe=None)
    core = [admin, *(role_user(role, users[role]) for role in ROLES)]
    nodes = [agent_user(node, secret) for node, secret in sorted(credentials.nodes.items())]
    if FLEET in users:
        nodes.append(fleet_user(users[FLEET]))
    system = BusUser(name=SYS, password=users[SYS], publish=None, subscribe=None)
    text = "accounts {\n"
    text += "  CORE {\n    jetstream: enabled\n" + _block("users", [_user(u) for u in core])
    text += _block("exports", _exports()) + "  }\n"
    text += "  NODES {\n" + _block("users", [_user(u) for u in nodes])
    text += _block("exports", [_service(subjects.NODE_RPC_ALL, stream=True)])
    text += _block("imports", _node_imports()) + "  }\n"
    clients = [public_user(secret, name) for name, secret in sorted(credentials.clients.items())]
    limits = (
        f"max_connections: {PUBLIC_CONNECTIONS_MAX}, max_subscriptions: {PUBLIC_SUBSCRIPTIONS_MAX}"
    )
    text += f"  PUBLIC {{\n    limits {{ {limits} }}\n"
    text += _block("users", [_user(one) for one in (public_user(users[PUBLIC]), *clients)])
    text += _block("imports", _public_imports()) + "  }\n"
    text += "  SYS {\n" + _block("users", [_user(system)]) + "  }\n}\nsystem_account: SYS\n"
    return text
