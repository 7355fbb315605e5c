"""What the values of the wire may be beyond their types: bounds of integers, and the words of statuses.

Decides nothing about records of the log, which are read as they are. A message of another process is read with
`BoundedDecoder`, which refuses integers outside their bounds; `generate.py` writes bounds, formats and words into JSON
Schema. An integer without a row here is signed with 64 bits.
"""

import re
from array import array
from collections.abc import Callable
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect as mi

from schemas.base import DOUBLE_MAX

INT64 = (-(2**63), 2**63 - 1)
UINT64 = (0, 2**64 - 1)
#: 100 years: added to a time of the log it stays below 2^63.
SPAN_MAX_NS = 100 * 366 * 86_400 * 1_000_000_000
#: Entries that one answer of a query may have.
QUERY_LIMIT_MAX = 10_000
_COUNT = (0, 2**31 - 1)
_SIZE = (0, 2**63 - 1)
#: Fields of the same meaning in every Struct.
_BY_NAME = {"seed": UINT64, "min_seq": _SIZE, "job_modify_index": _SIZE}
#: By Struct and field; only of messages that are never in the log.
_BY_FIELD = {
    ("Query", "version"): (-1, 2**31 - 1),
    ("Query", "limit"): (0, QUERY_LIMIT_MAX),
    ("Query", "offset"): _COUNT,
    ("DrainRequest", "deadline_ns"): (-1, SPAN_MAX_NS),
    ("RollRequest", "generation"): _COUNT,
    ("AcceptLossRequest", "first_seq"): _SIZE,
    ("PolicyRequest", "seen_seq"): _SIZE,
    ("EligibilityRequest", "seen_seq"): _SIZE,
    ("DrainRequest", "seen_seq"): _SIZE,
    ("MetaRequest", "seen_seq"): _SIZE,
    ("ConfirmDeathRequest", "seen_seq"): _SIZE,
    ("PoolRequest", "seen_seq"): _SIZE,
    ("LogsAsk", "tail"): (-1, _COUNT[1]),
    ("ExecAsk", "rows"): (0, 65_535),
    ("ExecAsk", "columns"): (0, 65_535),
    ("SessionInput", "rows"): (0, 65_535),
    ("SessionInput", "columns"): (0, 65_535),
    ("SessionInput", "number"): _SIZE,
    ("SessionInput", "seen"): _SIZE,
    ("FilesAsk", "offset"): _SIZE,
    ("FilesAsk", "limit"): _SIZE,
    ("Heartbeat", "seq"): _SIZE,
    ("ReportNode", "number"): _SIZE,
    **dict.fromkeys(
        [
            (struct, "cas")
            for struct in (
                *("PutVariable", "DeleteVariable"),
                *("PutVariableRequest", "DeleteVariableRequest"),
            )
        ],
        (-1, _SIZE[1]),
    ),
    ("PutVariable", "incarnation"): _COUNT,
    ("PutVariable", "items"): _COUNT,
    ("PutVariable", "size"): _COUNT,
}
#: Parts of a plan, whose columns are not looked at here: they are long, only a scheduler's login may send them, and
#: `shared/core/decide/plans/columns.py` checks each value.
PLAN_PARTS = frozenset({"GroupPlacement", "Stops", "InPlace", "Evictions"})
#: Fields without `_ns` in their names that may exceed DOUBLE_MAX: keys, times and what is drawn.
_LARGE = frozenset(
    {"key", "keys", "previous", "evaluation", "alloc_key", "seed", "reschedules"}
    | {"deployment", "deployment_key", "rollout", "rollout_key"}
)
_LARGE_OF = frozenset(
    {("DeadLine", "at"), ("SetAllocationHealth", "healthy"), ("SetAllocationHealth", "unhealthy")}
)

_JOB = "pending running dead"
_VERDICT = "accepted refused pending"
_TASK = "pending running dead"
_CLIENT = "pending running complete failed lost unknown"
_NODE = "initializing ready down disconnected"
_EVALUATION = "pending blocked complete failed canceled"
_ROLLOUT = "progressing waiting running complete failed stopped"
_CAUSE = "submit revert rollout"
_HEALTH = "healthy unhealthy"
_ENDED = "healthy unhealthy deadline gate operator newer_version stopped"
_POOL = "sum indexed cluster-wide"
#: The three before the last two are not used yet.
_WAIT = (
    "misconfigured never_fits capacity priority reservation predecessor quota gang node_boot "
    "order out_of_reach"
)
_JOB_TYPES = "service batch system sysbatch"
#: Words of a field, by Struct and field, in the order of a life.
_WORDS = {
    ("Verdict", "status"): _VERDICT,
    ("OperatorVerdict", "status"): _VERDICT,
    ("VariableVerdict", "status"): _VERDICT,
    ("VariableRefused", "code"): "invalid conflict stale rate quota locked",
    ("ParsedJob", "status"): "accepted refused",
    ("JobProjection", "status"): _JOB,
    ("Rollout", "status"): _ROLLOUT,
    ("JobLine", "status"): _JOB,
    ("JobLine", "rollout_status"): _ROLLOUT,
    ("JobLine", "job_type"): _JOB_TYPES,
    ("EvalSummary", "status"): _EVALUATION,
    ("EvalSummary", "job_type"): _JOB_TYPES,
    ("BusServer", "status"): "current behind away up",
    ("NodeSummary", "status"): _NODE,
    ("VolumeLine", "status"): "pending ready failed deleting unavailable",
    ("NodeSummary", "eligibility"): "eligible ineligible",
    ("DeploymentLine", "status"): "running paused successful failed cancelled",
    ("GateLine", "status"): "closed opening open passed",
    (
        "RolloutMemberLine",
        "status",
    ): "waiting running successful failed cancelled unchanged rolled_back stopped",
    ("ServiceInstance", "health"): _HEALTH,
    ("ServiceInstance", "status"): "passing warning pending critical unknown",
    ("DeploymentWait", "why"): "health unhealthy promotion paused held rollout place schedule",
    ("AllocSummary", "desired_status"): "run stop evict",
    ("AllocSummary", "client_status"): _CLIENT,
    ("AllocSummary", "health"): _HEALTH,
    ("TaskShown", "state"): _TASK,
    ("TaskState", "state"): _TASK,
    ("AllocReport", "status"): "pending running complete failed",
    ("NodesStatusChanged", "status"): _NODE,
    ("ChangeLiveness", "status"): _NODE,
    ("PoolShown", "kind"): _POOL,
    ("PoolLine", "kind"): _POOL,
    ("FileLine", "kind"): "file directory link other",
    ("FieldChange", "kind"): "added removed edited",
    ("LogRecord", "kind"): "tx lease checkpoint roll",
    ("LogsAsk", "stream"): "stdout stderr",
    ("DeploymentEnded", "status"): "successful failed cancelled",
    ("DeploymentStarted", "cause"): _CAUSE,
    ("DeploymentLine", "cause"): _CAUSE,
    ("RolloutStarted", "order"): "together in_order",
    ("RegisterJobs", "order"): "together in_order",
    ("RolloutLine", "order"): "together in_order",
    ("RolloutLine", "status"): "running successful failed cancelled",
    ("RolloutEnded", "status"): "successful failed cancelled",
    ("DeploymentPromoted", "by"): "operator auto",
    ("RolloutLine", "cause"): _ENDED,
    ("RolloutEnded", "cause"): _ENDED,
    ("SkipLine", "why"): "overlap missed exists",
    ("AllocationsHealthChanged", "source"): "agent operator",
    ("QueueLine", "wait_class"): _WAIT,
    ("QueuedWait", "wait_class"): _WAIT,
    ("UnplacedLine", "wait_class"): _WAIT,
    ("Waiting", "wait_class"): _WAIT,
    ("WaitingLine", "wait_class"): _WAIT,
    ("WaitingSummary", "wait_class"): _WAIT,
    ("WhyAnswer", "wait_class"): _WAIT,
}
WORDS = {key: tuple(words.split()) for key, words in _WORDS.items()}
#: `error.code` of any answer: stable words for programs, what they mean, and whether the same may succeed later.
ERROR_CODES: dict[str, str] = {
    "invalid": "The request, or a value in it, is malformed; `path` names the place. Correct it.",
    "too_large": "The request, or a part of it, is larger than allowed.",
    "not_found": "There is no such job, node, allocation, evaluation, submission or file.",
    "ambiguous": "A shortened id matches several objects. Use a longer prefix.",
    "conflict": "The id was used for other content, or the state changed since it was read. Read it again.",
    "forbidden": "The sender may not ask for this.",
    "refused": "The driver or the rules for file paths do not allow this; the message says why.",
    "not_running": "The task, or every task of the allocation, has ended or has not begun.",
    "gone": "The stream or its command has ended.",
    "failed": "The node or its driver could not do it; the message says why.",
    "busy": "The input buffer of a stream is full. Send the same request again.",
    "unavailable": "A service is busy, replaying or not connected. Send the same request again.",
    "log_full": "The log is full: only stops are accepted. Send the same request again later.",
}
T = TypeVar("T", bound=msgspec.Struct)
_Check = Callable[[Any], None]
_Limits = tuple[int, int]
#: What begins a value becomes ":" and each digit "0": then fixed bytes find an integer that is not small.
_FORMS = bytes.maketrans(b"0123456789,[ \t\r\n", b"0" * 10 + b":" * 6)
#: More than an integer of so many digits has, all bounds that are wide allow.
_SMALL_DIGITS = 18
_LONG = b"0" * (_SMALL_DIGITS + 1)
#: The seed of a plan, behind a text, that is surely inside its bounds: below 184 * 10**17, and so below 2**64. It
#: begins with fixed bytes, which are found without a look at the others.
_SEED = re.compile(rb'","seed":(?:1(?:[0-7]\d|8[0-3])\d{17}|\d{1,19})(?=[,}])')


def bounds(struct: str, field: str) -> tuple[int, int]:
    """Return the lowest and the highest value of an integer, by class and Python name of the field."""
    return _BY_FIELD.get((struct, field)) or _BY_NAME.get(field) or INT64


def may_exceed_double(struct: str, field: str) -> bool:
    """Tell whether a reader that holds numbers as doubles may lose digits of this integer."""
    is_large = field.endswith("_ns") or field in _LARGE or (struct, field) in _LARGE_OF
    return is_large and bounds(struct, field)[1] > DOUBLE_MAX


class _OutOfBoundsError(Exception):
    """An integer outside its bounds; the parts of its place are added from the inside outwards."""

    def __init__(self, limits: _Limits) -> None:
        super().__init__(limits)
        self.limits = limits
        self.parts: list[str] = []


class BoundedDecoder(Generic[T]):
    """A decoder of one message that refuses integers outside their bounds. Raises msgspec.ValidationError."""

    def __init__(self, of: type[T]) -> None:
        self._decoder = msgspec.json.Decoder(of)
        self._check = _of_struct(of)
        self._takes_small = all(
            low <= 0 and high >= 10**_SMALL_DIGITS for low, high in _reachable_limits(of)
        )

    def decode(self, data: bytes) -> T:
        """Decode a message. Raises msgspec.DecodeError, UnicodeDecodeError, RecursionError."""
        found = self._decoder.decode(data)
        if self._takes_small and _is_small(data):
            return found
        try:
            self._check(found)
        except _OutOfBoundsError as fault:
            low, high = fault.limits
            place = "".join(reversed(fault.parts))
            text = f"Expected `int` from {low} to {high} - at `${place}`"
            raise msgspec.ValidationError(text) from None
        return found


def _is_small(data: bytes) -> bool:
    """Tell whether no integer of a JSON text, seeds of plans aside, is negative or has more than 18 digits.

    No may be wrong, yes never is.
    """
    forms = data.translate(_FORMS)
    if b":-" in forms:
        return False
    if _LONG not in forms:
        return True
    # Each plan has a seed, which mostly fills its 64 bits.
    return _LONG not in _SEED.sub(b"", data).translate(_FORMS)


def bounded_decoder(of: type[T]) -> BoundedDecoder[T]:
    """Return the decoder of a type, made once."""
    return _decoder(of)


@cache
def _decoder(of: type) -> BoundedDecoder[Any]:
    return BoundedDecoder(of)


def _reachable_limits(struct: type) -> set[_Limits]:
    # The bounds of all integers of a Struct and of those inside it.
    found: set[_Limits] = set()
    seen: set[type] = set()

    def visit(info: mi.Type, limits: _Limits) -> None:
        match info:
            case mi.IntType():
                found.add(limits)
            case mi.StructType() if info.cls not in seen:
                seen.add(info.cls)
                for field in _checked_fields(info.cls):
                    visit(field.type, bounds(info.cls.__name__, field.name))
            case mi.VarTupleType():
                visit(info.item_type, limits)
            case mi.DictType():
                visit(info.value_type, limits)
            case mi.UnionType():
                for one in info.types:
                    visit(one, limits)
            case _:  # Holds no integer, or was visited.
                pass

    visit(mi.type_info(struct), INT64)
    return found


def _checked_fields(struct: type) -> list[mi.Field]:
    info = mi.type_info(struct)
    assert isinstance(info, mi.StructType)
    is_plan_part = struct.__name__ in PLAN_PARTS
    return [
        one for one in info.fields if not (is_plan_part and isinstance(one.type, mi.VarTupleType))
    ]


#: Of the Structs seen so far: a Struct may hold itself, so its check is entered before those of its fields are made.
_CHECKS: dict[type, _Check] = {}


def _of_struct(struct: type) -> _Check:
    """Make the check of a Struct: of its fields that hold integers. All bounds allow 0, so nothing falsy is checked."""
    if struct in _CHECKS:
        return _CHECKS[struct]
    checks: list[tuple[str, str, _Check]] = []

    def check_struct(value: Any) -> None:
        for name, shown, check in checks:
            held = getattr(value, name)
            if not held:
                continue
            try:
                check(held)
            except _OutOfBoundsError as fault:
                fault.parts.append(f".{shown}")
                raise

    _CHECKS[struct] = check_struct
    for field in _checked_fields(struct):
        check = _of_type(field.type, bounds(struct.__name__, field.name))
        if check is not None:
            checks.append((field.name, field.encode_name, check))
    return check_struct


def _of_type(info: mi.Type, limits: _Limits) -> _Check | None:
    """Make the check of a type; None: it holds no integer."""
    match info:
        case mi.IntType():
            return _of_integer(limits)
        case mi.StructType():
            return _of_struct(info.cls) if _reachable_limits(info.cls) else None
        case mi.VarTupleType(item_type=mi.IntType()) if limits == INT64:
            return _check_column
        case mi.VarTupleType():
            return _each(_of_type(info.item_type, limits), enumerate)
        case mi.DictType():
            return _each(_of_type(info.value_type, limits), dict.items)
        case mi.UnionType():
            return _of_union(info, limits)
        case _:
            return None


def _of_integer(limits: _Limits) -> _Check:
    low, high = limits

    def check(value: Any) -> None:
        if not low <= value <= high:
            raise _OutOfBoundsError(limits)

    return check


def _check_column(values: Any) -> None:
    try:
        array("q", values)
    except OverflowError:
        raise _OutOfBoundsError(INT64) from None


def _each(check: _Check | None, pairs: Callable[[Any], Any]) -> _Check | None:
    if check is None:
        return None

    def check_all(values: Any) -> None:
        key = None
        try:
            for key, value in pairs(values):  # noqa: B007
                check(value)
        except _OutOfBoundsError as fault:
            fault.parts.append(f"[{key}]")
            raise

    return check_all


def _of_union(info: mi.UnionType, limits: _Limits) -> _Check | None:
    found = {_python_type(one): _of_type(one, limits) for one in info.types}
    checks = {kind: check for kind, check in found.items() if check is not None}
    if not checks:
        return None

    def check(value: Any) -> None:
        known = checks.get(type(value))
        if known is not None:
            known(value)

    return check


def _python_type(info: mi.Type) -> type:
    match info:
        case mi.StructType():
            return info.cls
        case mi.IntType():
            return int
        case mi.DictType():
            return dict
        case mi.VarTupleType():
            return tuple
        case _:
            return type(None)
