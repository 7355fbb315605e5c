"""What an operator says of templates, from `CARAVAN_AGENT_TEMPLATE_*`."""

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


class TemplateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What templates may not do."""

    #: functions, and patterns such as `sprig_*`; empty: none is denied.
    function_denylist: str = ",".join(DENIED_BY_DEFAULT)

    @property
    def denied(self) -> tuple[str, ...]:
        """List the patterns."""
        return split_list(self.function_denylist)

    def attributes(self) -> dict[str, str]:
        """Node attributes: the function that most nodes deny and this one allows."""
        if any(fnmatchcase(EXECUTE_TEMPLATE, pattern) for pattern in self.denied):
            return {}
        return {EXECUTE_ATTRIBUTE: "true"}


def template_settings(environ: Mapping[str, str]) -> TemplateSettings:
    """Read the settings. Raises ConfigInvalid, also for a name that would deny nothing."""
    found = settings_from(TemplateSettings, environ, prefix=PREFIX)
    if found == TemplateSettings():
        return found
    # All functions are imported for their names, which the default does not need.
    from shared.gotemplate.functions.catalog import is_named_by  # noqa: PLC0415

    for pattern in found.denied:
        if not is_named_by(pattern):
            raise ConfigInvalid(f"{TEMPLATE_DENYLIST}: {pattern[:80]!r} names no function")
    return found
