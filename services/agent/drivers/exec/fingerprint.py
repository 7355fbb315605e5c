"""Fingerprint of driver exec: the isolation that works here, and whether it satisfies the operator.

Decides the attributes of the driver, and why it is off. The probes are in `isolation/probe.py`.
"""

from services.agent.drivers.exec.settings import ExecSettings
from services.agent.drivers.isolation.probe import IsolationSupport


class ExecFingerprint:
    """One per driver."""

    def __init__(self, settings: ExecSettings, found: IsolationSupport) -> None:
        self._settings = settings
        self._found = found

    def off(self) -> str:
        """Explain why no task can run here; empty: tasks can run."""
        if not self._settings.enabled:
            return "disabled"
        works = {*self._found.works}
        if works & {"view", "landlock"}:
            works.add("files")
        lacks = [kind for kind in self._settings.demanded if kind not in works]
        if lacks:
            whys = {**self._found.why}
            whys.setdefault("files", whys.get("view", whys.get("probe", "not found")))
            return "; ".join(
                f"{kind} isolation unavailable: {whys.get(kind, 'not found')}" for kind in lacks
            )
        if "user" in works and isinstance(user := self._settings.user_of(""), str):
            return user
        return ""

    def attributes(self) -> dict[str, str]:
        """Attributes of the node."""
        settings, works = self._settings, self._found.works
        if why := self.off():
            return {"driver.exec.off": why} if settings.enabled else {}
        spaces = [one for one in ("ipc", "network", "pid", "uts", "view") if one in works]
        version = "2" if "memory" in self._found.hierarchies.second else "1"
        names = ("allow_host_namespaces", "allow_unlimited_memory")
        return {
            **{f"driver.exec.{name}": "1" for name in names if getattr(settings, name)},
            "driver.exec": "1",
            "driver.exec.cgroups": version if "cgroups" in works else "0",
            "driver.exec.files": "view" if "view" in works else "landlock",
            "driver.exec.landlock": str(self._found.landlock),
            "driver.exec.namespaces": ",".join(spaces),
            "driver.exec.seccomp": str(int("seccomp" in works and settings.seccomp)),
            "driver.exec.user": settings.user if "user" in works else "",
        }
