"""Functions that encode, decode and hash; addresses."""

import base64
import binascii
import csv
import hashlib
import io
import ipaddress
import json
import re
from typing import Any
from urllib.parse import quote_plus

from shared.jobspec.hcl.errors import HclError, StructuredTextError
from shared.jobspec.hcl.functions.registry import function
from shared.jobspec.hcl.values import (
    TEXT_MAX,
    Value,
    as_int,
    as_text,
    describe_value,
    normalize_number,
    value_size,
)

#: Cost of a character in PyYAML, in our steps.
_YAML_STEPS = 6
#: RFC 4122, appendix C: they differ in one digit.
_NAMESPACES = {
    name: f"6ba7b81{digit}9dad11d180b400c04fd430c8"
    for name, digit in (("dns", 0), ("url", 1), ("oid", 2), ("x500", 4))
}
_UUID = re.compile(r"[0-9a-f]{32}")


def base64_of(content: bytes) -> str:
    """Encode bytes."""
    return base64.b64encode(content).decode()


def json_text(value: Value) -> str:
    """Encode as Go does: sorted keys, no spaces, < > & as escapes."""
    value_size(value, TEXT_MAX)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@function("base64encode")
def _base64encode(text: Value) -> Value:
    """Encode a text in base64."""
    return base64_of(as_text(text).encode())


@function("base64decode")
def _base64decode(text: Value) -> Value:
    """Decode a text from base64."""
    try:
        return base64.b64decode(as_text(text), validate=True).decode()
    except (binascii.Error, ValueError):
        raise HclError(f"{describe_value(text)} is not valid base64 of UTF-8 text") from None


@function("urlencode")
def _urlencode(text: Value) -> Value:
    """Encode a text for a URL."""
    return quote_plus(as_text(text))


@function("jsonencode")
def _jsonencode(value: Value) -> Value:
    """Encode a value in JSON."""
    return json_text(value)


@function("jsondecode")
def _jsondecode(text: Value) -> Value:
    """Decode a value from JSON."""
    try:
        found = json.loads(
            as_text(text), parse_float=lambda one: normalize_number(float(one)), parse_int=_int
        )
    except (ValueError, RecursionError) as err:
        raise HclError(f"not JSON: {err}") from None
    value_size(found, TEXT_MAX)
    return found


def _int(text: str) -> int:
    if len(text) > 80:
        raise HclError("number is out of range")
    return int(normalize_number(int(text)))


@function("yamlencode", needs_world=True)
def _yamlencode(world: Any, value: Value) -> Value:
    """Encode a value in YAML."""
    import yaml  # noqa: PLC0415 - few files need it

    world.work(_YAML_STEPS * 8 * value_size(value, world.steps))
    return str(yaml.safe_dump(value, sort_keys=True, allow_unicode=True))


@function("yamldecode", needs_world=True)
def _yamldecode(world: Any, text: Value) -> Value:
    """Decode a value from YAML."""
    from shared.jobspec.files.yaml_toml import yaml_value  # noqa: PLC0415 - as above

    world.work(_YAML_STEPS * len(as_text(text)))
    try:
        return yaml_value(as_text(text))
    except StructuredTextError as fault:
        raise HclError(fault.message) from None


@function("csvdecode")
def _csvdecode(text: Value) -> Value:
    """Decode CSV with a header line into a list of objects."""
    rows = list(csv.reader(io.StringIO(as_text(text))))
    if not rows:
        return []
    head, *body = rows
    if any(len(row) != len(head) for row in body if row):
        raise HclError("a row differs from the header in its number of fields")
    return [dict(zip(head, row, strict=True)) for row in body if row]


def _declare_hash(algorithm: str) -> None:
    @function(algorithm)
    def digest(text: Value) -> Value:
        """Hash a text, in hex."""
        return hashlib.new(algorithm, as_text(text).encode(), usedforsecurity=False).hexdigest()


for _algorithm in ("md5", "sha1", "sha256", "sha512"):
    _declare_hash(_algorithm)


@function("uuidv5")
def _uuidv5(namespace: Value, name: Value) -> Value:
    """Name-based UUID; the namespace is dns, url, oid, x500 or a UUID."""
    text = as_text(namespace)
    space = _NAMESPACES.get(text, text.lower().removeprefix("urn:uuid:").replace("-", ""))
    if not _UUID.fullmatch(space):
        raise HclError(f"{describe_value(text)} is neither dns, url, oid, x500 nor a UUID")
    made = bytes.fromhex(space) + as_text(name).encode()
    return hash_uuid(made, version=5)


def hash_uuid(content: bytes, *, version: int) -> str:
    """Return a UUID from the hash of a name."""
    digest = bytearray(hashlib.sha1(content, usedforsecurity=False).digest()[:16])
    digest[6] = digest[6] & 0x0F | version << 4
    digest[8] = digest[8] & 0x3F | 0x80
    found = digest.hex()
    return "-".join((found[:8], found[8:12], found[12:16], found[16:20], found[20:]))


def _network(text: Value) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(as_text(text), strict=False)
    except ValueError as err:
        raise HclError(str(err)) from None


@function("cidrhost")
def _cidrhost(prefix: Value, number: Value) -> Value:
    """Return the address of a host in a network."""
    network, at = _network(prefix), as_int(number)
    try:
        return str(network[at])
    except IndexError:
        raise HclError(f"{network} has no host {at}") from None


@function("cidrnetmask")
def _cidrnetmask(prefix: Value) -> Value:
    """Return the mask of a network."""
    return str(_network(prefix).netmask)


@function("cidrsubnet")
def _cidrsubnet(prefix: Value, bits: Value, number: Value) -> Value:
    """Return a network inside a network."""
    network, more, at = _network(prefix), as_int(bits), as_int(number)
    length = network.prefixlen + more
    if more < 0 or length > network.max_prefixlen or not 0 <= at < 2**more:
        raise HclError(f"{network} has no network {at} with {more} bits more")
    start = int(network.network_address) + (at << (network.max_prefixlen - length))
    return f"{ipaddress.ip_address(start) if network.version == 4 else ipaddress.IPv6Address(start)}/{length}"
