"""What to try where a cluster does not answer: hints name what the selected cluster runs in, containers or `up`."""

import os
from pathlib import Path

from services.cli.runtime import contexts
from services.cli.runtime.local_clusters import bus_addresses, running_at
from services.cli.runtime.output import CliError

COMPOSE = "docker compose -f deploy/compose.yaml"
_SELECTS = "CARAVAN_NATS_URL or --context selects another bus"
#: Selections that nothing but a `caravan up` of this machine explains.
_LOCAL = frozenset({"default", "newest `caravan up`"})


def is_in_containers(url: str) -> bool:
    """Whether a bus is at the address that `operator bootstrap` wrote, in this folder or where CARAVAN_SECRETS says."""
    folder = Path(os.environ.get("CARAVAN_SECRETS") or "deploy/secrets")
    try:
        written = (folder / "url").read_text(encoding="utf-8").strip()
        return bus_addresses(written) == bus_addresses(url)
    except (OSError, ValueError):
        return False


def absent_bus() -> str:
    """What to look at where no bus answers."""
    found = contexts.select()
    if is_in_containers(found.context.url):
        return f"do its containers run? `{COMPOSE} ps -a` lists them; {_SELECTS}"
    if found.reason in _LOCAL or running_at(found.context.url) is not None:
        return f"is `caravan up` running? {_SELECTS}"
    return f"does the cluster of {found.reason} run (`caravan up`, or its containers)? {_SELECTS}"


def silent_service(service: str) -> str:
    """Where a service says why it does not answer."""
    try:
        url = contexts.select().context.url
    except CliError:
        url = ""
    if is_in_containers(url):
        return f"`{COMPOSE} logs {service}` tells more"
    if running_at(url) is not None:
        return f"`caravan monitor --service {service}` tells more"
    return f"the log of {service} tells more"
