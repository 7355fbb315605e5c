"""Programs of the node's operator that fetch secrets: which there are, and a call of one.

A program is called as Nomad calls its secrets plugins: `PROGRAM fetch PATH`, with the answer as JSON on its standard
output. It runs as the agent's user, so no other user may be able to change it or its folder. What it prints on its
error output is dropped: it may hold anything.
"""

import asyncio
import contextlib
from collections.abc import Mapping

import msgspec

from services.agent.operator_programs import OperatorFolder, ProgramRefused
from services.agent.program_calls import ProgramCall, ProgramFailed
from shared.jobspec.checks.secrets import variable_error
from shared.jobspec.drivers.switches import SECRET_PLUGINS, provider_attribute

#: Of an answer.
ANSWER_BYTES_MAX = 64 * 1024
#: A program gets so long; then SIGTERM, and so long until SIGKILL.
FETCH_S, END_S = 60.0, 2.0
_REASON_CHARS_MAX = 300
_PATH = "/usr/local/bin:/usr/bin:/bin"


class PluginFailed(Exception):
    """A program cannot be run, or did not give a secret. Not `recoverable`: another try would fail the same way."""

    def __init__(self, reason: str, *, recoverable: bool = True) -> None:
        super().__init__(reason)
        self.recoverable = recoverable


class _Answer(msgspec.Struct):
    result: dict[str, str] | None = None
    error: str | None = None


class SecretPlugins:
    """The programs in one folder; an empty text: there is none."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._programs = OperatorFolder(folder, SECRET_PLUGINS)

    def attributes(self) -> dict[str, str]:
        """Node attributes: the programs that may be run."""
        found: dict[str, str] = {}
        for name in self._programs.names():
            with contextlib.suppress(PluginFailed):
                self._check(name)
                found[provider_attribute(name)] = "1"
        return found

    async def fetch(self, name: str, path: str, env: Mapping[str, str]) -> dict[str, str]:
        """Have a program fetch a secret. Raises PluginFailed; a call that is cancelled ends the program."""
        program = await asyncio.to_thread(self._check, name)
        for one in env:
            if text := variable_error(one):
                raise PluginFailed(f"variable {text}", recoverable=False)
        given = {"PATH": _PATH, **env, "CPI_OPERATION": "fetch"}
        call = ProgramCall(program, ("fetch", path), given)
        try:
            said, code = await call.run(limit_s=FETCH_S, end_s=END_S, bytes_max=ANSWER_BYTES_MAX)
        except ProgramFailed as err:
            text = f"program {name} {err}"
            raise PluginFailed(text, recoverable=err.recoverable) from None
        return _result(name, said, code)

    def _check(self, name: str) -> str:
        """Return the path of a program that may be run. Raises PluginFailed."""
        if not self._folder:
            text = f"this node has no programs for secrets ({SECRET_PLUGINS} is not set)"
            raise PluginFailed(text, recoverable=False)
        try:
            return self._programs.check(name)
        except ProgramRefused as err:
            raise PluginFailed(str(err), recoverable=False) from None


def _result(name: str, said: bytes, code: int) -> dict[str, str]:
    """Read an answer. Raises PluginFailed; its text holds nothing of an answer but what the program calls the error."""
    try:
        found = msgspec.json.decode(said, type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        if code:
            raise PluginFailed(f"program {name} ended with {code}") from None
        text = f'program {name} gave no JSON of the form {{"result": {{"KEY": "VALUE"}}}}'
        raise PluginFailed(text) from None
    if found.error:
        words = " ".join(found.error.split())[:_REASON_CHARS_MAX]
        raise PluginFailed(f"program {name}: {words}")
    if code:
        raise PluginFailed(f"program {name} ended with {code}")
    if not found.result:
        raise PluginFailed(f"program {name} gave neither a result nor an error")
    return found.result
