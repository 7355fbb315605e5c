"""Data for templates under test: an environment, a time, and nothing else."""

from collections.abc import Mapping, Sequence

from shared.gotemplate.data import NamedInstance, ServiceName, Variable, VaultSecret


class NoData:
    """A source without data: everything but the environment is missing."""

    def __init__(self, env: Mapping[str, str] | None = None, now_ns: int = 0) -> None:
        self._env = dict(env or {})
        self._now_ns = now_ns

    def env(self, name: str) -> str | None:
        """Read a variable of the task's environment."""
        return self._env.get(name)

    def file(self, path: str) -> str | None:
        """Read a file: never known."""
        return None

    def now_ns(self) -> int:
        """Return the given time."""
        return self._now_ns

    def service(self, name: str, *, checked: bool = False) -> Sequence[NamedInstance] | None:
        """List instances: never known."""
        return None

    def services(self) -> Sequence[ServiceName] | None:
        """List services: never known."""
        return None

    def variable(self, path: str) -> Variable | None:
        """Read a variable: never known."""
        return None

    def variable_exists(self, path: str) -> bool | None:
        """Look for a variable: never known."""
        return None

    def variables(self, prefix: str) -> Sequence[Variable] | None:
        """List variables: never known."""
        return None

    def secret(self, path: str) -> VaultSecret | None:
        """Read a secret: never known."""
        return None

    def secret_names(self, path: str) -> Sequence[str] | None:
        """List secrets: never known."""
        return None
