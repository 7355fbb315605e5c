"""How a service names itself and reads its settings: what every `__main__.py` needs before there is a role.

Decides that an instance's name is new at every start (leases and plan numbers hang on it) and that settings come from
`CARAVAN_*` alone. Next: `runner.py`.
"""

import os
import secrets
from collections.abc import Mapping
from typing import TypeVar

import msgspec
import structlog

from shared.bus.connect import without_login
from shared.bus.runner import set_up_logging
from shared.errors import ConfigInvalid

S = TypeVar("S", bound=msgspec.Struct)
#: Never logged.
_SECRET = ("password", "credentials")


def new_instance(role: str) -> str:
    """Name this process: role, pid and three random bytes."""
    return f"{role}-{os.getpid()}-{secrets.token_hex(3)}"


def settings_from(kind: type[S], environ: Mapping[str, str] | None = None) -> S:
    """Read a frozen Struct's fields from `CARAVAN_<FIELD>`. Raises ConfigInvalid with the variable's name."""
    environ = os.environ if environ is None else environ
    names = {name: f"CARAVAN_{name.upper()}" for name in kind.__struct_fields__}
    given = {name: environ[key] for name, key in names.items() if key in environ}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as err:
        raise ConfigInvalid(f"CARAVAN_* settings: {err}") from err


def log_settings(role: str, *settings: msgspec.Struct, level: str = "info") -> None:
    """Write what a service was configured with, secrets left out."""
    set_up_logging(level)
    known = {name: value for one in settings for name, value in msgspec.structs.asdict(one).items()}
    shown = {
        name: without_login(value) if name.endswith("url") else value
        for name, value in sorted(known.items())
        if not _is_secret(name)
    }
    structlog.get_logger().info("service.configured", service=role, **shown)


def _is_secret(name: str) -> bool:
    return any(part in name for part in _SECRET)
