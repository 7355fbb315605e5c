"""What an operator says of artifacts, from `CARAVAN_AGENT_ARTIFACT_*`."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from services.agent.drivers.driver import split_list
from services.agent.inputs.artifacts.addresses import AddressRules
from shared.bus.process.settings import settings_from
from shared.errors import ConfigInvalid

PREFIX = "CARAVAN_AGENT_ARTIFACT_"


class ArtifactSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and permissions."""

    #: seconds for one artifact, and without a byte.
    timeout_s: int = 1_800
    stall_s: int = 60
    #: of one file, and of all that it unpacks to.
    max_bytes: int = 100_000_000_000
    max_files: int = 4_096
    #: networks beside public and private ones: `127.0.0.0/8,169.254.10.0/24`.
    allow: str = ""
    #: folder whose files may be artifacts; empty: none.
    files: str = ""
    #: MiB of files with a checksum that are kept; 0: none.
    cache_mib: int = 1_024
    #: `landlock`: fetch nothing where the kernel cannot confine the helper.
    require: str = ""


def artifact_settings(environ: Mapping[str, str]) -> ArtifactSettings:
    """Read the settings. Raises ConfigInvalid."""
    found = settings_from(ArtifactSettings, environ, prefix=PREFIX)
    try:
        AddressRules(split_list(found.allow))
    except ValueError as err:
        raise ConfigInvalid(f"{PREFIX}ALLOW: {err}") from err
    if found.require not in ("", "landlock"):
        raise ConfigInvalid(f"{PREFIX}REQUIRE is {found.require!r}, it must be landlock or empty")
    if found.files and not Path(found.files).is_absolute():
        raise ConfigInvalid(f"{PREFIX}FILES is {found.files!r}, it must be an absolute path")
    for name in ("timeout_s", "stall_s", "max_bytes", "max_files"):
        if getattr(found, name) < 1:
            raise ConfigInvalid(f"{PREFIX}{name.upper()} must be at least 1")
    return found


def bus_hosts(url: str) -> tuple[str, ...]:
    """Name the hosts of the bus, from which nothing is fetched."""
    hosts = (urlsplit(one if "://" in one else f"nats://{one}").hostname for one in split_list(url))
    return tuple(dict.fromkeys(host for host in hosts if host))
