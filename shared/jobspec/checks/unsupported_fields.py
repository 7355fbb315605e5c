"""Finds what a job requests and does not get: fields that are not built yet, and keys that are not fields at all.

Both are refused unless the submission accepts them. Works on the keys of the decoded JSON: a field missing in
`supported_fields.py` is unbuilt, unless its value is empty, zero or the default, as `nomad job run -output` and
`nomad job inspect` print what is absent. Next: `shared/jobspec/submission.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple

from schemas.jobs import ErrorDetail
from shared.jobspec.checks.error_list import ErrorList
from shared.jobspec.checks.supported_fields import (
    DEFAULT_BLOCKS,
    FIELDS_WITHOUT_EFFECT,
    KEYS_OF_THE_SERVER,
    MEANINGFUL_WHEN_EMPTY,
    SUPPORTED_FIELDS,
)
from shared.jobspec.nomad.base import JobBlock
from shared.jobspec.nomad.block_schema import BlockSchema, FieldSchema, block_schema
from shared.jobspec.nomad.job import JobSpec
from shared.jobspec.strict_json import JsonObject

#: Names in one warning.
LISTED_MAX = 20
#: Unknown keys that get a suggestion: to look for one costs time.
SUGGESTIONS_MAX = 20
_KEY_MAX = 60

#: What an accepted submission did not get, written into the job's text: JSON paths.
ACCEPTED_UNBUILT = "AcceptedUnbuilt"
#: Keys of a job that are acted on without a field: Caravan's own mark, and whether the job is stopped.
_WITHOUT_FIELD = frozenset(("Stop", ACCEPTED_UNBUILT))
#: Keys beside the job in Nomad's request -> their defaults.
_ENVELOPE = {
    "Region": "global",
    "Namespace": "default",
    "AuthToken": "",
    "SecretID": "",
    "PolicyOverride": False,
    "PreserveCounts": False,
    "EvalPriority": 0,
}
#: Keys beside a job that a submission has; Nomad keeps the text of a job's file in `Submission`.
_BESIDE = frozenset(
    (
        *("Job", "SubmissionID", "EnforceIndex", "JobModifyIndex", "Submission"),
        *("accept_unbuilt", "accept_unknown"),
    )
)


class UnmetFields(NamedTuple):
    """Requested and unsupported parts of a job."""

    #: fields that are not built yet.
    unbuilt: tuple[ErrorDetail, ...] = ()
    #: keys that are not fields.
    unknown: tuple[ErrorDetail, ...] = ()
    #: paths of fields that have no effect in Nomad either.
    without_effect: tuple[str, ...] = ()


class _BlockSupport:
    """The supported keys of a block: `quiet` ones are values, `inner` ones are blocks."""

    def __init__(self, struct: type[JobBlock]) -> None:
        self.shape: BlockSchema = block_schema(struct)
        self.built = SUPPORTED_FIELDS.get(struct, frozenset(self.shape.by_json))
        self.without_effect = FIELDS_WITHOUT_EFFECT.get(struct, frozenset())
        self.unbuilt = KEYS_OF_THE_SERVER if struct is JobSpec else frozenset()
        self.inner = {
            field.json: field
            for field in self.shape.fields
            if field.json in self.built and field.inner is not None
        }
        self.quiet = self.built - self.inner.keys()
        if struct is JobSpec:
            self.quiet |= _WITHOUT_FIELD
        self.known = self.quiet | self.inner.keys()
        #: (key, kind, plan) of each inner block.
        self.blocks = [
            (key, one.kind, _block_support(one.inner)) for key, one in self.inner.items()
        ]


@cache
def _block_support(struct: type[JobBlock] | None) -> _BlockSupport:
    assert struct is not None
    return _BlockSupport(struct)


def _is_supported(plan: _BlockSupport, block: JsonObject) -> bool:
    """Return whether everything in a block is acted on: the common case, with no path built."""
    if not plan.known.issuperset(block):
        return False
    for key, kind, inner in plan.blocks:
        value = block.get(key)
        if not value:
            continue
        if kind != "block":
            if type(value) is not (dict if kind == "labelled" else list):
                return False
            blocks: Any = value.values() if isinstance(value, dict) else value
        else:
            blocks = (value,)
        for one in blocks:
            if type(one) is not dict or not (
                inner.quiet.issuperset(one) or _is_supported(inner, one)
            ):
                return False
    return True


_NOTHING = UnmetFields()


def unmet_fields(job: JsonObject, envelope: Mapping[str, Any]) -> UnmetFields:
    """Find what a job, valid or not, and the keys beside it request and do not get; bounded in number."""
    is_plain = _is_supported(_block_support(JobSpec), job)
    if is_plain and _BESIDE.issuperset(envelope):
        return _NOTHING
    search = _Search()
    for key in sorted(envelope.keys() - _BESIDE - _ENVELOPE.keys()):
        search.unknown.add(key[:_KEY_MAX], search.unknown_text(key, sorted(_BESIDE)))
    for key, default in _ENVELOPE.items():
        if envelope.get(key) and envelope[key] != default:
            search.unbuilt.add(key, unbuilt_text(key))
    if not is_plain:
        search.block(JobSpec, job, "Job", is_built=True)
    return UnmetFields(
        tuple(search.unbuilt.found), tuple(search.unknown.found), tuple(search.without_effect)
    )


def unbuilt_text(name: str) -> str:
    """Refuse a field that is not built."""
    return f"{name} is not built yet; --accept-unbuilt (accept_unbuilt beside the job) submits the job without it"


def listed(found: tuple[str, ...]) -> str:
    """List the first names."""
    rest = f" and {len(found) - LISTED_MAX} more" if len(found) > LISTED_MAX else ""
    return ", ".join(found[:LISTED_MAX]) + rest


class _Search:
    """Walks through one job."""

    def __init__(self) -> None:
        self.unbuilt = ErrorList()
        self.unknown = ErrorList()
        self.without_effect: list[str] = []

    def block(
        self, struct: type[JobBlock], block: JsonObject, path: str, *, is_built: bool
    ) -> None:
        """Look through one block; inside one that is not built, for unknown keys alone."""
        plan = _block_support(struct)
        defaults = DEFAULT_BLOCKS.get(path.rpartition(".")[2], {})
        for key in sorted(block):
            field = plan.shape.by_json.get(key)
            here = f"{path}.{key[:_KEY_MAX]}"
            if field is None:
                self._other_key(plan, key, block[key], here, is_built=is_built)
                continue
            acted_on = key in plan.built
            is_asked = block[key] != defaults.get(key) and not is_default(field, block[key])
            if is_built and not acted_on and is_asked:
                if key in plan.without_effect:
                    self.without_effect.append(here)
                else:
                    self.unbuilt.add(here, unbuilt_text(field.hcl))
            if field.inner is not None:
                for at, one in _blocks(field, block[key]):
                    self.block(field.inner, one, here + at, is_built=is_built and acted_on)

    def _other_key(
        self, plan: _BlockSupport, key: str, value: Any, path: str, *, is_built: bool
    ) -> None:
        """Judge a key that has no field: Nomad's server wrote it, or it is a slip.

        `nomad job run -output` prints empty what a server writes later, and no key that is neither this nor a field.
        """
        if key in plan.quiet:
            return
        if key in plan.without_effect:
            if value and is_built:
                self.without_effect.append(path)
        elif key in plan.unbuilt:
            if value and is_built:
                self.unbuilt.add(path, unbuilt_text(key))
        else:
            is_json = key[:1].isupper()
            names = [field.json if is_json else field.hcl for field in plan.shape.fields]
            self.unknown.add(path, self.unknown_text(key, names))

    def unknown_text(self, key: str, names: Sequence[str]) -> str:
        """Refuse a key that is none of these names."""
        near: list[str] = []
        if len(self.unknown.found) < SUGGESTIONS_MAX:
            near = get_close_matches(key[:_KEY_MAX], names, 1)
        text = f"unknown parameter or block {key[:_KEY_MAX]!r}"
        return text + (f"; did you mean {near[0]}?" if near else "")


def _blocks(field: FieldSchema, value: Any) -> Iterator[tuple[str, JsonObject]]:
    """List the blocks of a field, each with its index; a value of another shape has none."""
    if field.kind == "block":
        pairs: Any = [("", value)]
    elif field.kind == "labelled":
        pairs = sorted(value.items()) if isinstance(value, dict) else ()
        pairs = [(f"[{at}]", one) for at, one in pairs]
    else:
        pairs = [
            (f"[{at}]", one) for at, one in enumerate(value if isinstance(value, list) else ())
        ]
    return ((at, one) for at, one in pairs if isinstance(one, dict))


def is_default(field: FieldSchema, value: Any) -> bool:
    """Return whether a value equals the default behaviour."""
    if value is None or value == field.default:
        return True
    if not value and not isinstance(value, bool):
        return field.json not in MEANINGFUL_WHEN_EMPTY
    if value is False:
        return not field.default
    if field.kind != "block" or field.inner is None or not isinstance(value, dict):
        return False
    if field.json in MEANINGFUL_WHEN_EMPTY:
        return False
    shape = block_schema(field.inner)
    defaults = DEFAULT_BLOCKS.get(field.json, {})
    return all(
        key in shape.by_json
        and (item == defaults.get(key, _NOTHING) or is_default(shape.by_json[key], item))
        for key, item in value.items()
    )
