"""Settings of an agent as a whole; those of its parts stand beside them."""

from collections.abc import Mapping

import msgspec

from shared.bus.process.settings import settings_from
from shared.errors import ConfigInvalid

PREFIX = "CARAVAN_AGENT_"
#: More than any kill_timeout that intake accepts, and delays around it.
END_TASKS_LIMIT_S = 900


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What only an agent reads, from `CARAVAN_AGENT_*`."""

    node_id: str
    data_dir: str
    #: empty: the host's name.
    name: str = ""
    datacenter: str = "dc1"
    node_pool: str = "default"
    node_class: str = ""
    #: `key=value,key=value`.
    meta: str = ""
    #: plain processes as the agent's user, without isolation: off unless the operator wants it.
    raw_exec: bool = False
    #: become this `UID:GID` once the credentials are read, which tasks of that user then cannot read; only root can.
    run_as: str = ""
    #: on SIGTERM, end the tasks too, each as its job says; else they run on, and the next agent adopts them.
    end_tasks: bool = False
    #: how long that may take; then, or at a second SIGTERM, what still runs is killed.
    end_tasks_limit_s: int = END_TASKS_LIMIT_S
    #: end all tasks of the data directory and go: its node is not run any more.
    retire: bool = False
    #: keep `secrets/` of tasks in memory; only root can.
    secrets_memory: bool = True
    #: end an allocation that uses more disk than its ask; else only report it.
    disk_kill: bool = False
    #: what the node needs for itself.
    reserved_cpu_mhz: int = 0
    reserved_memory_mib: int = 0
    reserved_disk_mib: int = 0
    #: by the kernel's numbers: `0,2-3`.
    reserved_cores: str = ""
    #: first and last port that the cluster may pick, and ports that are never given out: `22,8000-8010`.
    port_min: int = 20_000
    port_max: int = 32_000
    reserved_ports: str = ""
    #: addresses of the node that ports can be in by name: `public=203.0.113.7,private=10.0.0.7`.
    host_networks: str = ""
    #: directories of the node that tasks may mount by name: `data=/srv/data,models=/srv/models:ro`.
    host_volumes: str = ""
    #: folder below which volumes are made on request; empty: `host_volumes` in the data directory.
    host_volumes_dir: str = ""
    #: folder of programs that make volumes; empty: there are none.
    host_volume_plugins: str = ""
    #: folder of programs that fetch secrets; empty: there are none.
    secret_plugins: str = ""
    #: folder of programs that find devices; empty: there are none.
    device_plugins: str = ""
    #: offer NVIDIA's GPUs where their driver is loaded.
    nvidia: bool = True
    #: folder of programs that are drivers; empty: there are none.
    driver_plugins: str = ""
    #: send the output of tasks whose job says so to the bus: it may hold secrets, and every client can read it.
    ship_logs: bool = False
    #: JSON or TOML file with what else the node offers.
    pools: str = ""
    #: for tests: simulated devices, `vendor/type/model:count`.
    fake_gpus: str = ""
    #: as one of so many agents on this machine, and which, from 0: it reports that part of what the machine has.
    shares: int = 1
    share: int = 0
    #: 0: by fingerprint.
    cpu_mhz: int = 0
    memory_mib: int = 0


def agent_settings(environ: Mapping[str, str]) -> AgentSettings:
    """Read the settings. Raises ConfigInvalid."""
    found = settings_from(AgentSettings, environ, prefix=PREFIX)
    if not 0 <= found.share < max(found.shares, 1):
        text = f"{PREFIX}SHARE is {found.share}, it must be below {PREFIX}SHARES ({found.shares})"
        raise ConfigInvalid(text)
    if not found.node_id or not found.data_dir:
        raise ConfigInvalid(f"{PREFIX}NODE_ID and {PREFIX}DATA_DIR must be set")
    return found
