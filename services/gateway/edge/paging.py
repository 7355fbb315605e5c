"""Lists as Nomad pages them: prefix, filter on whole objects, order, `per_page`, `next_token`, `reverse`."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault

R = TypeVar("R")
PER_PAGE_MAX = 100_000
#: Compiles a filter expression to a predicate. Raises ValueError.
FilterCompiler = Callable[[str], Callable[[Any], bool]]


def page(
    call: Call,
    rows: Iterable[R],
    *,
    order: Callable[[R], tuple[int, str]],
    whole: Callable[[R], dict[str, Any]],
    stub: Callable[[R], Any] | None = None,
    compile_filter: FilterCompiler | None = None,
) -> list[Any]:
    """One page of `rows`. `order`: index of the creation and id, by which they are sorted; index 0: by id alone.

    `whole` makes the object that a filter looks at, `stub` what is listed. Sets X-Nomad-NextToken: the token of the
    first row of the next page. Raises HttpFault 400 for a filter or number that cannot be read.
    """
    per_page = call.number("per_page")
    if per_page < 0 or per_page > PER_PAGE_MAX:
        raise HttpFault(400, f"per_page must be between 0 and {PER_PAGE_MAX}, was {per_page}")
    accepts = _filter(call, compile_filter)
    is_reverse = call.flag("reverse")
    ordered = sorted(rows, key=order, reverse=is_reverse)
    if ordered and (begin := call.text("next_token")):
        first = _position(begin, has_index=order(ordered[0])[0] > 0)
        ordered = [
            row for row in ordered if (order(row) <= first if is_reverse else order(row) >= first)
        ]
    found: list[Any] = []
    for row in ordered:
        if accepts is not None and not _accepts(accepts, whole(row)):
            continue
        if per_page and len(found) == per_page:
            index, name = order(row)
            call.headers["X-Nomad-NextToken"] = f"{index}.{name}" if index else name
            break
        found.append((stub or whole)(row))
    return found


def _position(token: str, *, has_index: bool) -> tuple[int, str]:
    """Where a page begins. Raises HttpFault 400."""
    if not has_index:
        return 0, token
    index, _, name = token.partition(".")
    if not index.isascii() or not index.isdigit() or len(index) > 18:
        raise HttpFault(400, f"next_token {token!r} is not INDEX.ID")
    return int(index), name


def _filter(call: Call, compile_filter: FilterCompiler | None) -> Callable[[Any], bool] | None:
    expression = call.text("filter")
    if not expression:
        return None
    if compile_filter is None:
        raise HttpFault(400, "this list takes no filter")
    try:
        return compile_filter(expression)
    except ValueError as err:
        text = "failed to create result paginator: failed to read filter expression"
        raise HttpFault(400, f"{text}: {err}") from err


def _accepts(accepts: Callable[[Any], bool], value: dict[str, Any]) -> bool:
    try:
        return accepts(value)
    except LookupError as err:
        text = err.args[0] if err.args else err
        fault = f"failed to read result page: error finding value in datum: {text}"
        raise HttpFault(400, fault) from err
