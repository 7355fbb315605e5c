"""Says which data the inputs of a run wait for: after a while, and again when it is other data."""

import asyncio

from services.agent.inputs.input_handler import InputContext

#: Nomad's word, of templates.
EVENT = "Template"
#: Data that is there sooner is nothing to say.
TELL_AFTER_S = 3.0
NAMED_MAX = 3
_NAME_CHARS_MAX = 60


class _WaitingRun:
    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.timer = timer
        self.is_told = False
        self.told = ""
        #: input -> what it lacks.
        self.missing: dict[str, tuple[str, ...]] = {}


class MissingData:
    """What inputs of one kind wait for on one agent. `kind`: of the events; `why`: ends their texts."""

    def __init__(self, kind: str = EVENT, why: str = "") -> None:
        self._kind = kind
        self._why = why
        self._runs: dict[tuple[str, str], _WaitingRun] = {}

    def note(self, about: InputContext, name: str, missing: tuple[str, ...]) -> None:
        """Note what an input of a task lacks now; empty: nothing."""
        key = (about.alloc_id, about.task)
        run = self._runs.get(key)
        if run is None:
            if not missing:
                return
            loop = asyncio.get_running_loop()
            timer = loop.call_later(TELL_AFTER_S, self._tell, about, key)
            run = self._runs[key] = _WaitingRun(timer)
        run.missing.pop(name, None)
        if missing:
            run.missing[name] = missing
        if not run.missing:
            run.timer.cancel()
            del self._runs[key]
        elif run.is_told:
            self._tell(about, key)

    def _tell(self, about: InputContext, key: tuple[str, str]) -> None:
        run = self._runs[key]
        run.is_told = True
        text = missing_text({one for names in run.missing.values() for one in names})
        if text != run.told:
            run.told = text
            about.note(self._kind, text + self._why)


def missing_text(names: set[str]) -> str:
    """Name the first of what is missing: `Missing: a, b, c and 2 more`."""
    shown = [one[:_NAME_CHARS_MAX] for one in sorted(names)]
    more = f" and {len(shown) - NAMED_MAX} more" if len(shown) > NAMED_MAX else ""
    return f"Missing: {', '.join(shown[:NAMED_MAX])}{more}"
