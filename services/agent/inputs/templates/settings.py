"""What an operator says of templates, from `CARAVAN_AGENT_TEMPLATE_*`."""

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec

from services.agent.drivers.driver import split_list
from shared.bus.process.settings import settings_from
from shared.errors import ConfigInvalid
from shared.jobspec.drivers.switches import (
    DENIED_BY_DEFAULT,
    EXECUTE_ATTRIBUTE,
    EXECUTE_TEMPLATE,
    TEMPLATE_DENYLIST,
)

PREFIX = "CARAVAN_AGENT_TEMPLATE_"
#: Of the event of a template that cannot be rendered.
EVENT = "Template Failed"
_WAITS = ("wait_min", "wait_max", "wait_bounds_min", "wait_bounds_max")


class TemplateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What templates may not do, and how long they wait for further changes."""

    #: functions, and patterns such as `sprig_*`; empty: none is denied.
    function_denylist: str = ",".join(DENIED_BY_DEFAULT)
    #: a template that says nothing is rendered when its data has not changed for so many seconds, and at most so long
    #: after the first change.
    wait_min: float = 0.2
    wait_max: float = 4.0
    #: what a template says of that is kept within these seconds; 0: any.
    wait_bounds_min: float = 0.0
    wait_bounds_max: float = 0.0

    @property
    def denied(self) -> tuple[str, ...]:
        """List the patterns."""
        return split_list(self.function_denylist)

    def wait(self, min_ns: int, max_ns: int) -> tuple[float, float]:
        """Return how many seconds a template waits for further changes, least and most; -1: it does not say."""
        least = self.wait_min if min_ns < 0 else self._within(min_ns / 1e9)
        most = self.wait_max if max_ns < 0 else self._within(max_ns / 1e9)
        if max_ns < 0:
            most = max(least, most)
        return min(least, most), most

    def _within(self, seconds: float) -> float:
        most = self.wait_bounds_max or math.inf
        return min(max(seconds, self.wait_bounds_min), most)

    def attributes(self) -> dict[str, str]:
        """Node attributes: the function that most nodes deny and this one allows."""
        if any(fnmatchcase(EXECUTE_TEMPLATE, pattern) for pattern in self.denied):
            return {}
        return {EXECUTE_ATTRIBUTE: "true"}


def template_settings(environ: Mapping[str, str]) -> TemplateSettings:
    """Read the settings. Raises ConfigInvalid, also for a name that would deny nothing."""
    found = settings_from(TemplateSettings, environ, prefix=PREFIX)
    _check_waits(found)
    if found.function_denylist == TemplateSettings().function_denylist:
        return found
    # All functions are imported for their names, which the default does not need.
    from shared.gotemplate.functions.catalog import is_named_by  # noqa: PLC0415

    for pattern in found.denied:
        if not is_named_by(pattern):
            raise ConfigInvalid(f"{TEMPLATE_DENYLIST}: {pattern[:80]!r} names no function")
    return found


def _check_waits(found: TemplateSettings) -> None:
    """Raise ConfigInvalid for a wait that cannot be."""
    for name in _WAITS:
        if not 0 <= getattr(found, name) < math.inf:
            raise ConfigInvalid(f"{PREFIX}{name.upper()} must be a number of seconds, at least 0")
    bound = found.wait_bounds_max or math.inf
    for low, high, most in (
        ("wait_min", "wait_max", found.wait_max),
        ("wait_bounds_min", "wait_bounds_max", bound),
    ):
        if getattr(found, low) > most:
            text = f"{PREFIX}{low.upper()} must not exceed {PREFIX}{high.upper()}"
            raise ConfigInvalid(text)
