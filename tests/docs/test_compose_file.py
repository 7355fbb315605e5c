"""docs/operations.md and deploy/compose.yaml say the same: variables, services, profiles, volumes, ports, order."""

import re
import shlex
from typing import Any

import yaml

from services.cli.operator.bootstrap import bootstrap
from services.cli.runtime.output import CommandOutput
from shared.bus.server import accounts
from tests.compose.page import PAGE, ROOT, blocks

TEXT = (ROOT / "deploy" / "compose.yaml").read_text()
FILE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
#: `${NAME:-default}`.
VARIABLES = dict(re.findall(r"\$\{(CARAVAN_\w+):-([^}]*)\}", TEXT))
THREE = ("Upgrade three servers", "Back up three servers")
HEADINGS = ("Start", "Scale", "A bus of three servers", "Stop", "Upgrade", "Back up", *THREE)


def lines(*headings: str) -> list[str]:
    """Shell lines under headings of the page."""
    return [line for one in headings for block in blocks(one) for line in block.splitlines()]


def orders(*headings: str) -> list[list[str]]:
    """What is asked of compose: verb, options and services."""
    found = []
    for line in lines(*headings):
        for part in re.findall(r"docker compose -f deploy/compose.yaml ([^;|&]+)", line):
            found += [shlex.split(part)]
    return found


def instances(service: str) -> int:
    """How many of a service run by default."""
    said = SERVICES[service].get("deploy", {}).get("replicas", 1)
    found = re.fullmatch(r"\$\{\w+:-(\d+)\}", str(said))
    return int(found.group(1)) if found else int(said)


def test_every_variable_of_the_file_is_on_the_page_with_its_default() -> None:
    """The table of the page names what the file reads, and no other; their defaults are equal."""
    rows = re.findall(
        r"^\| (`CARAVAN_[^|]+) \| [^|]+ \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE
    )
    told: dict[str, str] = {}
    for names, default in rows:
        known = re.findall(r"`(CARAVAN_\w+)`", names)
        values = [re.sub(r"`|, built here", "", one).strip() for one in default.split(", ")]
        values = [one for one in values if one != "built here"]
        told |= dict(zip(known, values * len(known) if len(values) == 1 else values, strict=True))
    expected = {name: default.replace("./", "deploy/") for name, default in VARIABLES.items()}
    assert told == expected


def test_the_page_names_services_volumes_and_profiles_that_exist() -> None:
    """Every word of its commands is a verb, an option, or a name of the file."""
    verbs = {"build", "up", "stop", "start", "down", "create", "cp", "rm", "logs", "ps"}
    for verb, *words in orders(*HEADINGS, "Repair a damaged server"):
        assert verb in verbs
        names = [word.partition(":")[0] for word in words if not word.startswith("-")]
        assert [
            name
            for name in names
            if name not in SERVICES and not name.startswith(("backup/", "damaged"))
        ] == []
    volumes = re.findall(r"caravan_([\w-]+)", "\n".join(lines(*HEADINGS)))
    assert set(volumes) == set(FILE["volumes"]) - {"cluster"}
    exported = re.findall(r"^export COMPOSE_PROFILES=(\S+)$", PAGE.read_text(), re.MULTILINE)
    profiles = {one for service in SERVICES.values() for one in service.get("profiles", ())}
    assert {one for said in exported for one in said.split(",")} == profiles
    # Said once, a profile is meant by every later command: none that stops some and leaves others running.
    assert "--profile" not in PAGE.read_text() and "--scale" not in PAGE.read_text()


def test_an_upgrade_replaces_one_kind_after_the_other() -> None:
    """The page has every service once, each waited for, the applier last; agents come behind them."""
    [upgrade] = blocks("Upgrade")
    kinds = re.findall(r" up -d --no-deps --wait (\w+) &&$", upgrade, re.MULTILINE)
    assert kinds[-1] == "plan_applier"
    others = {name for name in SERVICES if not name.startswith(("agent-", "nats-"))} - {"create"}
    assert sorted(kinds) == sorted(others)
    assert sorted(kinds) == sorted(accounts.ROLES)
    assert "healthcheck" in SERVICES[kinds[0]]
    first, last = (upgrade.index(f"--wait {kind} ") for kind in (kinds[0], kinds[-1]))
    assert upgrade.index("--wait current") < first < last < upgrade.index("up -d &&")


def test_an_upgrade_of_three_servers_is_that_of_one_with_each_server_in_turn() -> None:
    """Its block is complete: the lines for one server, with three replaced while all hold everything."""
    [one], [three] = blocks("Upgrade"), blocks("Upgrade three servers")
    replaced = "docker compose -f deploy/compose.yaml up -d --no-deps --force-recreate nats-{} &&\n"
    wait = "caravan operator status --wait current &&\n"
    assert one.count(replaced.format(1) + wait) == 1
    each = wait + "".join(replaced.format(number) + wait for number in (1, 2, 3))
    whole = one.replace(replaced.format(1) + wait, each)
    assert three == whole.replace("operator bootstrap &&", "operator bootstrap --servers 3 &&")


def test_a_number_of_instances_is_kept_by_every_up() -> None:
    """What the page scales is a variable of the file; one applier and one broker stand by."""
    scaled = re.findall(r"^export (CARAVAN_\w+S)=\d+$", "\n".join(lines("Scale")), re.MULTILINE)
    counted = {
        name: re.sub(r"\W", "", str(one["deploy"]["replicas"])).rstrip("0123456789")
        for name, one in SERVICES.items()
        if "deploy" in one
    }
    assert set(scaled) <= set(counted.values())
    assert {f"CARAVAN_{name.upper()}S" for name in counted} == set(counted.values())
    assert {name: instances(name) for name in ("plan_applier", "eval_broker", "scheduler")} == {
        "plan_applier": 2,
        "eval_broker": 2,
        "scheduler": 1,
    }


def test_a_restore_of_three_replaces_all_three() -> None:
    """All stores are removed while nothing runs, and all are put back, before any server starts."""
    restore = blocks("Back up three servers")[1].splitlines()
    restore = [line.removesuffix(" &&") for line in restore]
    verbs = [shlex.split(line)[4] if "compose" in line else line.split()[1] for line in restore]
    copies = ["cp"] * 4
    assert verbs == ["down", "volume", "create", *copies, "run", "up", "operator", "log"]
    servers = [name for name in SERVICES if name.startswith("nats-")]
    assert len(servers) == 3
    for name in servers:
        assert f"caravan_{name}" in restore[1]
        assert any(f"cp backup/{name}/. {name}:/data" in line for line in restore)
    # Without the key of the keeper the bus's copy has no values; it belongs to the user of the services again.
    assert any("cp backup/keeper/. keeper:/var/lib/caravan" in line for line in restore)
    assert "-v caravan_keeper:/keeper" in restore[7] and "10001:10001 /keeper" in restore[7]
    for heading in THREE:
        assert [line for line in lines(heading) if "--wait current" in line]


def test_ports_of_three_servers_follow_each_other(tmp_path: Any) -> None:
    """The URL that bootstrap writes names the ports that the file publishes."""
    assert (
        bootstrap(
            CommandOutput(), directory=str(tmp_path), nodes="n", clients="", servers=3, port=4222
        )
        == 0
    )
    url = (tmp_path / "url").read_text()
    published = [SERVICES[f"nats-{number}"]["ports"] for number in (1, 2, 3)]
    ports = [re.findall(r":-(\d+)\}:4222", one[0])[0] for one in published]
    assert ports == ["4222", "4223", "4224"]
    assert re.findall(r"127\.0\.0\.1:(\d+)", url) == ports
    # The page's file of CARAVAN_CREDENTIALS is one of these, and its login is the administrator's.
    named = re.findall(
        r"^export CARAVAN_CREDENTIALS=deploy/secrets/(\S+)$", PAGE.read_text(), re.MULTILINE
    )
    assert named == ["admin.json"]
    assert set(accounts.read_credentials(tmp_path / named[0]).users) == {accounts.ADMIN}
