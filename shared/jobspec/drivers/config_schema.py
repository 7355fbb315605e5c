"""What a node registers of a driver plugin: names of attributes, and the JSON Schema of its options.

Decides which part of that language is understood, and how the values of a job file fit them: as leniently as the
tables of the built-in drivers (`options.py`), since HCL writes a block as a list of maps, and a reference resolves to a
text. The schema is the plugin's, so it is read within bounds. Next: `../plugin_drivers.py`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from shared.jobspec.drivers.options import (
    HINTS_MAX,
    KINDS,
    OptionDiagnostic,
    OptionMismatch,
    UnresolvedReference,
    suggest,
)
from shared.regexp.matcher import RegexpMatcher
from shared.regexp.syntax import PatternRefusedError

#: Of a schema: its compact JSON, how deep it is, and its parts.
SCHEMA_BYTES_MAX, _DEPTH_MAX, _PARTS_MAX = 16 * 1024, 8, 512
#: Of one pattern, and of the texts that it is tried on.
_STATES_MAX, _TEXT_CHARS_MAX = 128, 1024
#: Faults of one config.
_FAULTS_MAX = 50

_TYPES = ("string", "integer", "number", "boolean", "array", "object")
#: Keywords that say nothing about which values are valid.
_NOTES = frozenset(
    ("title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated")
)


#: What a driver may declare that it can; docs/driver-plugins.md says what each means.
CAPABILITIES = ("exec", "mounts", "no_network", "remote")


class SchemaRefused(Exception):
    """A schema that is not understood; the text names the place in it."""


class ConfigSchema(msgspec.Struct, frozen=True, kw_only=True):
    """What one value must be."""

    type: str = ""
    choices: tuple[Any, ...] = ()
    properties: dict[str, "ConfigSchema"] = {}
    required: tuple[str, ...] = ()
    #: of properties that are not listed: whether there may be any, or what each must be.
    others: "ConfigSchema | bool" = True
    items: "ConfigSchema | None" = None
    #: lowest and highest number.
    least: float = -math.inf
    most: float = math.inf
    #: fewest and most characters of a text, or entries of a list.
    shortest: int = 0
    longest: int | None = None
    pattern: str = ""
    matcher: Any = None


def driver_attribute(driver: str, name: str = "") -> str:
    """Name an attribute of a node's driver; without `name` the one that offers it."""
    return f"driver.{driver}.{name}" if name else f"driver.{driver}"


@lru_cache(maxsize=64)
def read_schema(text: str) -> ConfigSchema:
    """Read a schema, an object in JSON. Raises SchemaRefused."""
    if len(text.encode()) > SCHEMA_BYTES_MAX:
        raise SchemaRefused(f"the schema is longer than {SCHEMA_BYTES_MAX} bytes")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise SchemaRefused("the schema is no JSON") from None
    found = _Reader().read(value, "", 0)
    if found.type not in ("", "object"):
        raise SchemaRefused("the schema of options must be of type object")
    return msgspec.structs.replace(found, type="object")


class _Reader:
    """Reads one schema, and counts its parts."""

    def __init__(self) -> None:
        self._parts = 0

    def read(self, value: Any, path: str, depth: int) -> ConfigSchema:
        """Read the schema at a path. Raises SchemaRefused."""
        self._parts += 1
        if depth > _DEPTH_MAX or self._parts > _PARTS_MAX:
            raise SchemaRefused(f"{path or 'the schema'}: it is too deep or has too many parts")
        if value is True:
            return ConfigSchema()
        if not isinstance(value, dict):
            raise SchemaRefused(f"{path or 'the schema'}: must be an object")
        fields: dict[str, Any] = {}
        for word in sorted(value):
            here = f"{path}.{word}" if path else word
            read = self._WORDS.get(word)
            if read is not None:
                fields |= read(self, value[word], here, depth)
            elif word not in _NOTES:
                raise SchemaRefused(f"{here}: this keyword is not understood")
        return ConfigSchema(**fields)

    def _type(self, value: Any, path: str, _depth: int) -> dict[str, Any]:
        if value not in _TYPES:
            raise SchemaRefused(f"{path}: must be one of {', '.join(_TYPES)}")
        return {"type": value}

    def _properties(self, value: Any, path: str, depth: int) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise SchemaRefused(f"{path}: must be an object")
        found = {name: self.read(one, f"{path}.{name}", depth + 1) for name, one in value.items()}
        return {"properties": found}

    def _others(self, value: Any, path: str, depth: int) -> dict[str, Any]:
        others = value if isinstance(value, bool) else self.read(value, path, depth + 1)
        return {"others": others}

    def _items(self, value: Any, path: str, depth: int) -> dict[str, Any]:
        return {"items": self.read(value, path, depth + 1)}

    def _required(self, value: Any, path: str, _depth: int) -> dict[str, Any]:
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise SchemaRefused(f"{path}: must be a list of names")
        return {"required": tuple(value)}

    def _enum(self, value: Any, path: str, _depth: int) -> dict[str, Any]:
        plain = isinstance(value, list) and value and not any(map(_is_nested, value))
        if not plain:
            raise SchemaRefused(f"{path}: must be a list of texts, numbers or flags")
        return {"choices": tuple(value)}

    def _const(self, value: Any, path: str, depth: int) -> dict[str, Any]:
        return self._enum([value], path, depth)

    def _bound(self, value: Any, path: str, _depth: int) -> dict[str, Any]:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SchemaRefused(f"{path}: must be a number")
        try:
            float(value)
        except OverflowError:
            raise SchemaRefused(f"{path}: the number has too many digits") from None
        return {"least" if path.endswith("minimum") else "most": value}

    def _length(self, value: Any, path: str, _depth: int) -> dict[str, Any]:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise SchemaRefused(f"{path}: must be a whole number of at least 0")
        return {"shortest" if "min" in path.rpartition(".")[2] else "longest": value}

    def _pattern(self, value: Any, path: str, _depth: int) -> dict[str, Any]:
        if not isinstance(value, str):
            raise SchemaRefused(f"{path}: must be a text")
        try:
            made = RegexpMatcher(value, states_max=_STATES_MAX, text_chars_max=_TEXT_CHARS_MAX)
        except PatternRefusedError as err:
            raise SchemaRefused(f"{path}: {err}") from None
        return {"pattern": value, "matcher": made}

    _WORDS: Mapping[str, Callable[..., dict[str, Any]]] = {
        "type": _type,
        "properties": _properties,
        "additionalProperties": _others,
        "items": _items,
        "required": _required,
        "enum": _enum,
        "const": _const,
        "minimum": _bound,
        "maximum": _bound,
        "minLength": _length,
        "maxLength": _length,
        "minItems": _length,
        "maxItems": _length,
        "pattern": _pattern,
    }


def fit_config(
    schema: ConfigSchema, config: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[OptionDiagnostic, ...]]:
    """Fit options to a schema. Returns them with the types that it names, and what is wrong.

    What holds a reference `${…}` is left as it is: only the node knows its value.
    """
    fitter = _Fitter()
    found = fitter.fit(schema, dict(config), "")
    return found if isinstance(found, dict) else {}, tuple(fitter.faults)


class _Fitter:
    """Fits one config, and collects faults."""

    def __init__(self) -> None:
        self.faults: list[OptionDiagnostic] = []
        self._strange = 0

    def fit(self, schema: ConfigSchema, value: Any, path: str) -> Any:
        """Fit the value at a path."""
        try:
            value = _typed(schema.type, value)
        except UnresolvedReference:
            return value
        except OptionMismatch as err:
            self._add(path, str(err))
            return value
        if isinstance(value, str) and "${" in value:
            return value
        for text in _bounds(schema, value):
            self._add(path, text)
        if isinstance(value, list) and schema.items is not None:
            return [self.fit(schema.items, one, f"{path}[{at}]") for at, one in enumerate(value)]
        if isinstance(value, dict):
            return self._fit_object(schema, value, path)
        return value

    def _fit_object(self, schema: ConfigSchema, value: dict[str, Any], path: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in sorted(value):
            here = f"{path}.{name[:60]}" if path else name[:60]
            known = schema.properties.get(name, schema.others)
            if known is False:
                self._strange += 1
                names = sorted(schema.properties) if self._strange <= HINTS_MAX else []
                self._add(here, f"unknown option {name[:60]!r}{suggest(name, names)}")
            elif value[name] is not None:
                found[name] = (
                    self.fit(known, value[name], here)
                    if isinstance(known, ConfigSchema)
                    else value[name]
                )
        for name in schema.required:
            if value.get(name) is None:
                self._add(f"{path}.{name}" if path else name, "is required")
        return found

    def _add(self, path: str, text: str) -> None:
        if len(self.faults) < _FAULTS_MAX:
            self.faults.append(OptionDiagnostic(path, text))


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list) or value is None


def _typed(kind: str, value: Any) -> Any:
    """Read a value as one of a type. Raises OptionMismatch, UnresolvedReference."""
    read = {"string": "text", "integer": "number", "boolean": "flag"}.get(kind)
    if read is not None:
        return KINDS[read](value)
    if kind == "number":
        return _real(value)
    if kind == "array" and not isinstance(value, list):
        # A block that is written once is a list of one only in HCL.
        if isinstance(value, dict):
            return [value]
        raise OptionMismatch(f"must be a list, was {str(value)[:60]!r}")
    if kind == "object" and not isinstance(value, dict):
        # A block of HCL is a list of maps.
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
            return value[0]
        raise OptionMismatch("must be one block or map")
    return value


def _real(value: Any) -> int | float:
    if isinstance(value, str):
        if "${" in value:
            raise UnresolvedReference
        try:
            value = float(value)
        except ValueError:
            raise OptionMismatch(f"must be a number, was {value[:60]!r}") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise OptionMismatch(f"must be a number, was {str(value)[:60]}")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _bounds(schema: ConfigSchema, value: Any) -> Iterator[str]:
    """Say what is wrong with a value of the right type."""
    if schema.choices and not any(
        one == value and isinstance(one, bool) == isinstance(value, bool) for one in schema.choices
    ):
        known = [str(one) for one in schema.choices]
        text = f"must be one of {', '.join(known)[:300]}, was {str(value)[:40]!r}"
        yield text + (suggest(value, known) if isinstance(value, str) else "")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.least:
            yield f"must be at least {schema.least}, was {value}"
        if value > schema.most:
            yield f"must be at most {schema.most}, was {value}"
    if isinstance(value, str | list):
        unit = "characters" if isinstance(value, str) else "entries"
        if len(value) < schema.shortest:
            yield f"must have at least {schema.shortest} {unit}, has {len(value)}"
        if schema.longest is not None and len(value) > schema.longest:
            yield f"must have at most {schema.longest} {unit}, has {len(value)}"
    if isinstance(value, str) and schema.matcher is not None and not schema.matcher.is_in(value):
        yield f"must match {schema.pattern[:80]}, was {value[:40]!r}"
