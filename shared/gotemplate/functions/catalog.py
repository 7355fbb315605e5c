"""All functions of templates, and those that are refused with their reasons."""

import difflib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from shared.gotemplate.functions import (
    builtin,
    collections,
    convert,
    data,
    numbers,
    sprig_lists,
    sprig_text,
    text,
)
from shared.gotemplate.functions.registry import FUNCTIONS
from shared.protocol.task_variables import path_refusal, prefix_refusal

#: Importing them registers their functions.
FAMILIES: Final = (
    builtin,
    collections,
    convert,
    data,
    numbers,
    sprig_lists,
    sprig_text,
    text,
)
_CONSUL: Final = frozenset(
    (
        *("caLeaf", "caRoots", "connect", "datacenters", "exportedServices", "importedServices"),
        *("key", "keyExists", "keyOrDefault", "ls", "node", "nodes", "partitions", "peerings"),
        *("safeLs", "safeTree", "tree"),
    )
)
#: Of Vault: built, for tasks with a vault block, and not.
OF_VAULT: Final = ("secret", "secrets")
_VAULT: Final = frozenset(("pkiCert",))
#: What reads a variable, and what lists those below a prefix.
_OF_PATH: Final = frozenset(("nomadVar", "nomadVarExists"))
_OF_PREFIX: Final = frozenset(("nomadVarList", "nomadVarListSafe"))
#: What to use instead.
_INSTEAD: Final = {
    "key": "nomadVar",
    "keyExists": "nomadVarExists",
    "ls": "nomadVarList",
}
#: Functions that are refused: name -> reason.
REFUSED_FUNCTIONS: Final = {
    "plugin": "it would start a program on the node",
    "writeToFile": "it would write files beside the destination",
    **dict.fromkeys(
        ("spew_dump", "spew_printf", "spew_sdump", "spew_sprintf"),
        "it prints types of Go; use toJSONPretty or printf",
    ),
    "sockaddr": "it would show the addresses of the node; use NOMAD_IP_<label> and NOMAD_ADDR_<label>",
}


class FunctionPolicy(msgspec.Struct, frozen=True):
    """Which functions a template may use; patterns such as `sprig_*` name many."""

    #: by the operator: pattern -> reason.
    denied: Mapping[str, str] = {}
    #: functions whose data the caller cannot have: pattern -> reason.
    unbuilt: Mapping[str, str] = {}
    #: variables that the task may read; empty: not known, what it names is refused when it is rendered.
    readable: tuple[str, ...] = ()

    def is_unbuilt(self, name: str) -> bool:
        """Return whether a function is known and refused because it is not built."""
        return (
            name in _CONSUL | _VAULT
            or name in REFUSED_FUNCTIONS
            or any(fnmatchcase(name, pattern) for pattern in self.unbuilt)
        )

    def refusal(self, name: str) -> str:
        """Return why a function cannot be used; empty: it can."""
        shown = name[:40]
        if name in _CONSUL:
            instead = f"; {_INSTEAD[name]} may serve instead" if name in _INSTEAD else ""
            return f"function {shown} needs Consul, which is not supported{instead}"
        if name in _VAULT:
            return f"function {shown} writes to Vault, which is not built yet"
        if name in REFUSED_FUNCTIONS:
            return f"function {shown} is not supported: {REFUSED_FUNCTIONS[name]}"
        if name not in FUNCTIONS:
            if name.startswith("sprig_"):
                return f"function {shown} is not supported"
            return f"unknown function {shown}{_nearest(name)}"
        for pattern, reason in (*self.denied.items(), *self.unbuilt.items()):
            if fnmatchcase(name, pattern):
                return f"function {shown} {reason}"
        return ""

    def argument_refusal(self, name: str, text: str) -> str:
        """Return why a function cannot be called with a text of the template; empty: it can."""
        if not self.readable or not text:
            return ""
        if name in _OF_PATH:
            return path_refusal(text, self.readable)
        return prefix_refusal(text, self.readable) if name in _OF_PREFIX else ""


def is_named_by(pattern: str) -> bool:
    """Return whether a pattern names a function of Nomad's templates; of Sprig all names are taken."""
    known = {*FUNCTIONS, *_CONSUL, *_VAULT, *REFUSED_FUNCTIONS}
    return pattern.startswith("sprig_") or any(fnmatchcase(name, pattern) for name in known)


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name[:40], sorted(FUNCTIONS), 1)
    return f"; did you mean {near[0]}?" if near else ""
