"""Functions that turn text into values and back. An empty text is the zero of what is parsed."""

import base64
import binascii
import math
import re
from typing import Final

from shared.gotemplate.errors import TemplateError
from shared.gotemplate.functions.registry import pure_function
from shared.gotemplate.layouts.json_text import json_text, read_json
from shared.gotemplate.layouts.toml_text import toml_text
from shared.gotemplate.layouts.yaml_text import read_yaml, yaml_text
from shared.gotemplate.syntax.constants import INT_MAX, INT_MIN, bytes_of, text_of
from shared.gotemplate.values import Unsigned, Value

_BOOLS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
_INT = re.compile(r"[+-]?[0-9]{1,40}")
_FLOAT = re.compile(
    r"(?i)[+-]?(?:inf(?:inity)?|nan|(?:[0-9](?:_?[0-9])*\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?"
    r"|0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)p[+-]?[0-9]+)"
)


def _invalid(text: str, kind: str) -> TemplateError:
    # Without the text: it may be a secret, and faults are shown as events.
    return TemplateError(f"a text of {len(text)} characters is not {kind}")


@pure_function("parseBool", "text")
def _parse_bool(text: str) -> Value:
    """Read a truth value."""
    if text and text not in _BOOLS:
        raise _invalid(text, "a truth value")
    return _BOOLS.get(text, False)


def parse_int(text: str) -> int:
    """Read a decimal int of 64 bits; an empty text is 0. Raises TemplateError."""
    if not text:
        return 0
    if not _INT.fullmatch(text) or not INT_MIN <= int(text) <= INT_MAX:
        raise _invalid(text, "a number of 64 bits")
    return int(text)


@pure_function("parseInt", "text")
def _parse_int(text: str) -> Value:
    """Read a decimal number."""
    return parse_int(text)


@pure_function("parseUint", "text")
def _parse_uint(text: str) -> Value:
    """Read a decimal number that is not negative."""
    if not text:
        return Unsigned(0)
    if not _INT.fullmatch(text) or text[0] in "+-" or int(text) >= 2**64:
        raise _invalid(text, "an unsigned number of 64 bits")
    return Unsigned(text)


@pure_function("parseFloat", "text")
def _parse_float(text: str) -> Value:
    """Read a number with a fraction."""
    return parse_float(text)


def parse_float(text: str) -> float:
    """Read a float; an empty text is 0. Raises TemplateError."""
    if not text:
        return 0.0
    if len(text) > 400 or not _FLOAT.fullmatch(text):
        raise _invalid(text, "a number")
    try:
        found = float.fromhex(text) if "x" in text.lower() else float(text)
    except OverflowError:
        found = math.inf
    if math.isinf(found) and "inf" not in text.lower():
        raise _invalid(text, "a number of 64 bits")
    return found


@pure_function("parseJSON", "text")
def _parse_json(text: str) -> Value:
    """Read JSON; every number becomes a float, so that 1000000 prints as 1e+06."""
    return read_json(text) if text else {}


@pure_function("parseYAML", "text")
def _parse_yaml(text: str) -> Value:
    """Read YAML."""
    return read_yaml(text) if text else {}


@pure_function("toJSON", "any")
def _to_json(value: Value) -> Value:
    """Write JSON on one line; < > & are escaped."""
    return json_text(value)


@pure_function("toJSONPretty", "any")
def _to_json_pretty(value: Value) -> Value:
    """Write JSON on many lines; < > & are escaped."""
    return json_text(value, indent="  ")


@pure_function("toUnescapedJSON", "any")
def _to_plain_json(value: Value) -> Value:
    """Write JSON on one line."""
    return json_text(value, escapes_html=False)


@pure_function("toUnescapedJSONPretty", "any")
def _to_plain_json_pretty(value: Value) -> Value:
    """Write JSON on many lines."""
    return json_text(value, indent="  ", escapes_html=False)


@pure_function("toYAML", "any")
def _to_yaml(value: Value) -> Value:
    """Write YAML."""
    return yaml_text(value)


@pure_function("toTOML", "any")
def _to_toml(value: Value) -> Value:
    """Write TOML."""
    return toml_text(value)


def _decoded(text: str, alphabet: bytes) -> str:
    data = bytes_of(text.replace("\n", "").replace("\r", ""))
    if len(data) % 4:
        raise _invalid(text, "base64")
    try:
        return text_of(base64.b64decode(data, altchars=alphabet, validate=True))
    except (binascii.Error, ValueError):
        raise _invalid(text, "base64") from None


@pure_function("base64Encode", "text")
def encode_base64(text: str) -> Value:
    """Encode in base64."""
    return base64.b64encode(bytes_of(text)).decode()


@pure_function("base64Decode", "text")
def decode_base64(text: str) -> Value:
    """Decode base64."""
    return _decoded(text, b"+/")


@pure_function("base64URLEncode", "text")
def _encode_url(text: str) -> Value:
    """Encode in base64 for URLs, with padding."""
    return base64.urlsafe_b64encode(bytes_of(text)).decode()


@pure_function("base64URLDecode", "text")
def _decode_url(text: str) -> Value:
    """Decode base64 for URLs."""
    return _decoded(text, b"-_")
