"""The operator's file of what is sent out: webhooks, and traces. Refuses what it does not know."""

import re
from urllib.parse import SplitResult, urlsplit

import msgspec

from shared.errors import ConfigInvalid

CLOUD_EVENTS, GRAFANA = "cloudevents", "grafana"
WEBHOOKS_MAX = 50
#: Name of the position of the export of traces; no webhook may have it.
OTLP_NAME = "otlp"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_TAG_CHARS_MAX, _TAGS_MAX = 50, 20


class TargetAddress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where something is sent to. Without the permissions only https to public addresses."""

    url: str
    allow_http: bool = False
    #: loopback, link-local and private addresses.
    allow_private: bool = False
    #: PEM file of the authorities that are trusted for it; empty: those of the system.
    ca_file: str = ""

    @property
    def parts(self) -> SplitResult:
        """The URL in parts."""
        return urlsplit(self.url)


class Webhook(TargetAddress, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One subscription. `kinds`: prefixes of event types; `jobs`: ids; empty: all."""

    name: str
    #: cloudevents or grafana.
    target: str = CLOUD_EVENTS
    kinds: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    #: file of the key of the signature; cloudevents only.
    secret_file: str = ""
    #: file of the token of a service account; grafana only.
    token_file: str = ""
    #: of the annotations; grafana only.
    tags: tuple[str, ...] = ("caravan",)
    #: where a new subscription begins; 0: with the next record.
    from_seq: int = 0


class TraceExport(TargetAddress, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The OTLP/HTTP endpoint for spans, as `http://127.0.0.1:4318/v1/traces`."""

    #: share of the jobs.
    sample: float = 1.0
    #: file with a header a line, as `Authorization: Bearer …`.
    headers_file: str = ""


class OutgoingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file holds."""

    webhook: tuple[Webhook, ...] = ()
    otlp: TraceExport | None = None


def parse_settings(data: bytes, name: str) -> OutgoingSettings:
    """Read TOML, or JSON where the file's name ends so. Raises ConfigInvalid with the file's name and the reason."""
    decode = msgspec.json.decode if name.endswith(".json") else msgspec.toml.decode
    try:
        found: OutgoingSettings = decode(data, type=OutgoingSettings)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise ConfigInvalid(f"{name}: {err}") from err
    problem = _problem(found)
    if problem:
        raise ConfigInvalid(f"{name}: {problem}")
    return found


def _problem(found: OutgoingSettings) -> str:
    """What is wrong; empty: nothing."""
    names = [one.name for one in found.webhook]
    if len(names) > WEBHOOKS_MAX:
        return f"at most {WEBHOOKS_MAX} webhooks, was {len(names)}"
    double = next((one for one in names if names.count(one) > 1), "")
    if double:
        return f"two webhooks have the name {double!r}"
    for one in found.webhook:
        if problem := _webhook_problem(one):
            return f"webhook {one.name!r}: {problem}"
    if found.otlp is not None:
        if not 0 < found.otlp.sample <= 1:
            return f"otlp: sample must be above 0 and at most 1, was {found.otlp.sample}"
        if problem := _endpoint_problem(found.otlp):
            return f"otlp: {problem}"
    return ""


def _webhook_problem(one: Webhook) -> str:
    if not _NAME.fullmatch(one.name) or one.name == OTLP_NAME:
        return f"a name has a-z, 0-9, - and _, at most 63 of them, and is not {OTLP_NAME!r}"
    if one.target not in (CLOUD_EVENTS, GRAFANA):
        return f"target must be {CLOUD_EVENTS} or {GRAFANA}, was {one.target!r}"
    is_grafana = one.target == GRAFANA
    if is_grafana and not one.token_file:
        return "token_file is required: the token of a service account of Grafana"
    if is_grafana and one.secret_file:
        return "secret_file is for cloudevents: Grafana verifies no signature"
    if not is_grafana and one.token_file:
        return "token_file is for grafana: cloudevents are signed with secret_file"
    if not is_grafana and not one.secret_file:
        return "secret_file is required: receivers verify the signature"
    if len(one.tags) > _TAGS_MAX or any(not 0 < len(tag) <= _TAG_CHARS_MAX for tag in one.tags):
        return f"at most {_TAGS_MAX} tags of 1 to {_TAG_CHARS_MAX} characters"
    if one.from_seq < 0:
        return f"from_seq must not be negative, was {one.from_seq}"
    if any(not kind for kind in one.kinds) or any(not job for job in one.jobs):
        return "kinds and jobs must not hold an empty text"
    return _endpoint_problem(one)


def _endpoint_problem(one: TargetAddress) -> str:
    try:
        parts, port = one.parts, one.parts.port
    except ValueError as err:
        return f"url {one.url!r}: {err}"
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return f"url must be https://HOST[:PORT]/PATH, was {one.url!r}"
    if any(ord(char) <= ord(" ") or ord(char) > ord("~") for char in one.url):
        return "url holds a space, a control character or one beyond ASCII: percent-encode it"
    if parts.username is not None or parts.password is not None:
        return "url must not hold a login: it would be in logs"
    if parts.fragment:
        return "url must not have a fragment"
    if parts.scheme == "http" and not one.allow_http:
        return "url must be https; allow_http = true permits http"
    return ""
