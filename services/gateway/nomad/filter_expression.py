"""Filter expressions of lists, as Nomad's `filter` parameter takes them.

    expression  = and { "or" and }
    and         = unary { "and" unary }
    unary       = "not" unary | "(" expression ")" | ("any"|"all") selector "as" names "{" expression "}" | match
    match       = value ("in"|"not in") selector | selector operator [value]
    operator    = "==" | "!=" | ["not"] "contains" | ["not"] "matches" | "is" ["not"] ("empty" | "nil")

A selector is `A.b.0`, `A["b.c"]` or a JSON pointer in quotes. Values are compared as the field's own kind. Bounded in
length and depth; regular expressions are those of constraints, which cannot run away.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shared.regexp.matcher import RegexpMatcher
from shared.regexp.syntax import PatternRefusedError

CHARS_MAX, DEPTH_MAX = 4096, 32
#: Of a regular expression, and of the text that it is held against.
STATES_MAX, TEXT_CHARS_MAX = 2_000, 65_536
_TOKEN = re.compile(
    r'\s*(?:(?P<op>==|!=|[(){},\[\]])|"(?P<quoted>(?:[^"\\]|\\.)*)"|`(?P<raw>[^`]*)`'
    r"|(?P<word>[^\s(){}\[\],=!\"`]+))"
)
_MISSING = object()
#: Decides about one object, with names bound by `any` and `all`. Raises LookupError for an unknown field.
Predicate = Callable[[Mapping[str, Any]], bool]
_Selector = tuple[str, ...]


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def compile_filter(text: str) -> Predicate:
    """Compile an expression. Raises ValueError with the position of the fault."""
    if len(text) > CHARS_MAX:
        raise ValueError(f"the expression exceeds {CHARS_MAX} characters")
    parser = _Parser(_tokens(text))
    found = parser.expression(0)
    parser.expect_end()
    return found


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"1:{at + 1}: no match found")
        kind = match.lastgroup or ""
        value = match[kind]
        if kind == "quoted":
            value = re.sub(r"\\(.)", r"\1", value)
        found.append(_Token(kind, value, match.start(kind)))
        at = match.end()
    return found


class _Parser:
    """Recursive descent over tokens."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    # ---- tokens ----

    def _peek(self, ahead: int = 0) -> _Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else _Token("end", "", CHARS_MAX)

    def _next(self) -> _Token:
        found = self._peek()
        self._at += 1
        return found

    def _takes(self, text: str, kind: str = "word") -> bool:
        found = self._peek()
        if found.kind == kind and found.text == text:
            self._at += 1
            return True
        return False

    def _expect(self, text: str, kind: str = "op") -> None:
        if not self._takes(text, kind):
            raise self._fault(f"expected {text!r}")

    def _fault(self, text: str) -> ValueError:
        found = self._peek()
        where = "at the end" if found.kind == "end" else f"1:{found.at + 1}"
        return ValueError(f"{where}: {text}")

    def expect_end(self) -> None:
        """Raise ValueError unless all was read."""
        if self._peek().kind != "end":
            raise self._fault("expected the end of the expression")

    # ---- grammar ----

    def expression(self, depth: int) -> Predicate:
        """Read alternatives."""
        if depth > DEPTH_MAX:
            raise ValueError(f"the expression is nested deeper than {DEPTH_MAX}")
        parts = [self._conjunction(depth)]
        while self._takes("or"):
            parts.append(self._conjunction(depth))
        return parts[0] if len(parts) == 1 else lambda one: any(part(one) for part in parts)

    def _conjunction(self, depth: int) -> Predicate:
        parts = [self._unary(depth)]
        while self._takes("and"):
            parts.append(self._unary(depth))
        return parts[0] if len(parts) == 1 else lambda one: all(part(one) for part in parts)

    def _unary(self, depth: int) -> Predicate:
        if depth > DEPTH_MAX:
            raise ValueError(f"the expression is nested deeper than {DEPTH_MAX}")
        if self._takes("not"):
            inner = self._unary(depth + 1)
            return lambda one: not inner(one)
        if self._takes("(", "op"):
            found = self.expression(depth + 1)
            self._expect(")")
            return found
        first = self._peek()
        if first.kind == "word" and first.text in ("any", "all") and self._peek(1).kind != "op":
            self._at += 1
            return self._collection(depth, is_all=first.text == "all")
        return self._match()

    def _collection(self, depth: int, *, is_all: bool) -> Predicate:
        selector = self._selector()
        self._expect("as", "word")
        names = [self._next().text]
        if self._takes(",", "op"):
            names.append(self._next().text)
        self._expect("{")
        inner = self.expression(depth + 1)
        self._expect("}")

        def over(one: Mapping[str, Any]) -> bool:
            found = _select(one, selector)
            pairs: list[tuple[Any, Any]] = []
            if isinstance(found, Mapping):
                pairs = list(found.items())
            elif isinstance(found, list | tuple):
                pairs = list(enumerate(found))
            results = (
                inner(_bound(one, names, pair, of_map=isinstance(found, Mapping))) for pair in pairs
            )
            return all(results) if is_all else any(results)

        return over

    def _match(self) -> Predicate:
        first = self._peek()
        if first.kind == "end":
            raise self._fault("expected a selector or a value")
        second = self._peek(1)
        is_value_first = second.kind == "word" and (
            second.text == "in" or (second.text == "not" and self._peek(2).text == "in")
        )
        if is_value_first and (first.kind in ("quoted", "raw") or second.text in ("in", "not")):
            return self._value_in()
        selector = self._selector()
        return self._operator(selector)

    def _value_in(self) -> Predicate:
        value = self._next().text
        is_not = self._takes("not")
        self._expect("in", "word")
        selector = self._selector()
        return lambda one: _contains(_select(one, selector), value) is not is_not

    def _operator(self, selector: _Selector) -> Predicate:
        if self._takes("==", "op"):
            value = self._value()
            return lambda one: _equals(_select(one, selector), value)
        if self._takes("!=", "op"):
            value = self._value()
            return lambda one: not _equals(_select(one, selector), value)
        if self._takes("is"):
            is_not = self._takes("not")
            if self._takes("empty"):
                return lambda one: _is_empty(_select(one, selector)) is not is_not
            if self._takes("nil"):
                return lambda one: (_select(one, selector) is None) is not is_not
            raise self._fault("expected 'empty' or 'nil'")
        is_not = self._takes("not")
        if self._takes("contains"):
            value = self._value()
            return lambda one: _contains(_select(one, selector), value) is not is_not
        if self._takes("matches"):
            return self._matches(selector, is_not=is_not)
        raise self._fault("expected an operator")

    def _matches(self, selector: _Selector, *, is_not: bool) -> Predicate:
        try:
            pattern = RegexpMatcher(
                self._value(), states_max=STATES_MAX, text_chars_max=TEXT_CHARS_MAX
            )
        except PatternRefusedError as err:
            raise ValueError(f"invalid regular expression: {err}") from err
        return lambda one: pattern.is_in(_text(_select(one, selector))) is not is_not

    def _value(self) -> str:
        found = self._next()
        if found.kind not in ("word", "quoted", "raw"):
            self._at -= 1
            raise self._fault("expected a value")
        return found.text

    def _selector(self) -> _Selector:
        found = self._next()
        if found.kind in ("quoted", "raw"):
            if not found.text.startswith("/"):
                self._at -= 1
                raise self._fault("a selector in quotes is a JSON pointer")
            parts = found.text[1:].split("/")
            return tuple(one.replace("~1", "/").replace("~0", "~") for one in parts)
        if found.kind != "word" or found.text[0].isdigit():
            self._at -= 1
            raise self._fault("expected a selector")
        names = [one for one in found.text.split(".") if one]
        while self._takes("[", "op"):
            names.append(self._next().text)
            self._expect("]")
            if self._peek().kind == "word" and self._peek().text.startswith("."):
                names += [one for one in self._next().text.split(".") if one]
        return tuple(names)


def _bound(
    one: Mapping[str, Any], names: list[str], pair: tuple[Any, Any], *, of_map: bool
) -> dict[str, Any]:
    """The object with the names that a collection expression binds: value, or key of a map; index and value."""
    if len(names) == 1:
        return {**one, names[0]: pair[0] if of_map else pair[1]}
    bound = dict(zip(names, pair, strict=True))
    return {**one, **{name: value for name, value in bound.items() if name != "_"}}


def _select(one: Any, selector: _Selector) -> Any:
    """The value of a selector. Raises LookupError: no such field. An absent key of a map of texts is None."""
    value = one
    for depth, name in enumerate(selector):
        if value is None:
            return None
        if isinstance(value, Mapping):
            found = value.get(name, _MISSING)
            if found is _MISSING:
                # Maps of texts, like Meta, may lack any key; objects have all their fields.
                if depth > 0 and all(isinstance(item, str) for item in value.values()):
                    return None
                where = "/".join(selector[: depth + 1])
                raise LookupError(f'/{where} at part {depth}: couldn\'t find key: "{name}"')
            value = found
        elif isinstance(value, list | tuple):
            if not name.isdigit() or int(name) >= len(value):
                raise LookupError(f"/{'/'.join(selector)}: index {name} is out of range")
            value = value[int(name)]
        else:
            where = "/".join(selector)
            text = f"/{where} at part {depth}: {name!r} is a field of no object"
            raise LookupError(text)  # noqa: TRY004 - one error for all that is not there.
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _equals(value: Any, text: str) -> bool:
    if isinstance(value, bool):
        return text.lower() in (("true", "t", "1") if value else ("false", "f", "0"))
    if isinstance(value, int | float):
        try:
            return value == (float(text) if isinstance(value, float) else int(text, 0))
        except ValueError:
            return False
    return isinstance(value, str) and value == text


def _contains(value: Any, text: str) -> bool:
    """Whether a list has an element, a map a key, or a text a part."""
    if isinstance(value, str):
        return text in value
    if isinstance(value, Mapping):
        return text in value
    if isinstance(value, list | tuple):
        return any(_equals(one, text) for one in value)
    return False


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | tuple | Mapping) and len(value) == 0)
