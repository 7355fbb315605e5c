"""Tables of rights in docs/, written from the accounts of the bus: `python -m tests.docs.rights_page` rewrites them.

A table stands between `<!-- rights: NAME -->` and `<!-- end of rights -->`. NAME is PUBLIC, or all.
"""

import re
from pathlib import Path

from shared.bus.server import accounts
from shared.bus.server.accounts import BusUser

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {"any-language.md": ("PUBLIC",), "operations.md": ("all",)}
_DIRECT_GET, _API = "$JS.API.DIRECT.GET.", "$JS.API."
_TABLE = re.compile(r"(<!-- rights: (\w+) -->\n).*?(<!-- end of rights -->)", re.DOTALL)
_NODE = "NODE"


def render(page: str) -> str:
    """The page with every table as the accounts say."""
    return _TABLE.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", page)


def of_public() -> str:
    """What a client may do, by the way in which it does it."""
    user = accounts.public_user("", "USER")
    asked, direct, rest = _split(user.publish or ())
    assert not rest
    rows = (
        ("publish, or request", _listed(asked)),
        ("read by direct get", _listed(direct)),
        ("subscribe", _listed(user.subscribe or ())),
        ("connections, subscriptions", _limits()),
    )
    return _table("| do | on |", rows)


def of_all() -> str:
    """What every user of the bus may do. NODE is the token of a node's id, USER the name of a client."""
    roles = [accounts.role_user(role, "") for role in accounts.ROLES]
    shared = {one for one in roles[0].publish or () if all(one in (r.publish or ()) for r in roles)}
    heard = {
        one for one in roles[0].subscribe or () if all(one in (r.subscribe or ()) for r in roles)
    }
    common = BusUser(
        name="every role",
        password="",
        publish=tuple(one for one in roles[0].publish or () if one in shared),
        subscribe=tuple(sorted(heard)),
    )
    users = [("CORE", common)]
    users += [("CORE", _without(role, shared | heard)) for role in roles]
    users += [("NODES", accounts.agent_user(_NODE, "")), ("NODES", accounts.fleet_user(""))]
    users += [("PUBLIC", accounts.public_user("", "USER"))]
    rows = []
    for account, user in users:
        asked, direct, rest = _split(user.publish or ())
        answers = ("answers to its askers",) if user.answers else ()
        name = user.name if user is common else f"`{user.name}`"
        rows.append(
            (
                f"{account} {name}",
                _listed(asked, *answers),
                _listed(direct),
                _listed(rest),
                _listed(user.subscribe or ()),
            )
        )
    head = "| account, user | publishes | reads by direct get | asks JetStream | subscribes |"
    everything = "everything in its account"
    rows.append(("CORE `admin`", everything, everything, everything, everything))
    rows.append(("SYS `sys`", everything, "", "", everything))
    return _table(head, rows)


def _without(user: BusUser, names: set[str]) -> BusUser:
    return BusUser(
        name=user.name,
        password="",
        publish=tuple(one for one in user.publish or () if one not in names),
        subscribe=tuple(one for one in user.subscribe or () if one not in names),
    )


TABLES = {"PUBLIC": of_public, "all": of_all}


def _split(publish: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Plain subjects, direct gets, and the rest of JetStream's interface without its prefix."""
    plain = tuple(one for one in publish if not one.startswith(_API))
    direct = tuple(one for one in publish if one.startswith(_DIRECT_GET))
    rest = tuple(
        one.removeprefix(_API)
        for one in publish
        if one.startswith(_API) and not one.startswith(_DIRECT_GET)
    )
    return plain, direct, rest


def _listed(names: tuple[str, ...], *more: str) -> str:
    return ", ".join((*(f"`{name}`" for name in _short(names)), *more))


def _short(names: tuple[str, ...]) -> list[str]:
    """Names without those that differ from one of the first generation of the log by its number only."""
    later = re.compile(r"((?:^|\.)LOG_)(?!1\b)\d+|^(log\.)(?!1\b)\d+")
    return list(dict.fromkeys(one for one in names if not later.search(one)))


def _limits() -> str:
    counts = accounts.PUBLIC_CONNECTIONS_MAX, accounts.PUBLIC_SUBSCRIPTIONS_MAX
    return "at most {:,} and {:,}, of all clients together".format(*counts)


def _table(head: str, rows: "tuple[tuple[str, ...], ...] | list[tuple[str, ...]]") -> str:
    line = "|---" * (head.count("|") - 1) + "|"
    return "\n".join([head, line, *(f"| {' | '.join(row)} |" for row in rows)])


def main() -> None:
    """Rewrite the pages."""
    for name in PAGES:
        path = DOCS / name
        path.write_text(render(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
