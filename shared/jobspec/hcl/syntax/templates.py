"""Templates: the literal and the worked out parts of a quoted text or a heredoc.

Decides escapes, `${}` with `$${` for the literal form, `%{}` directives with `%%{`, `~` trims, and how a `<<-` heredoc
loses its indent. The expressions inside are read by the parser that owns the text.
"""

import re
from collections.abc import Callable

from shared.jobspec.hcl.errors import HclError
from shared.jobspec.hcl.syntax.lexer import Lexer
from shared.jobspec.hcl.syntax.tree import (
    Expression,
    Literal,
    TemplateExpression,
    TemplateFor,
    TemplateIf,
)

_QUOTED = re.compile(
    r'(?P<plain>[^"\\$%\n]+)|(?P<open>\$\{|%\{)|(?P<kept>\$\$\{|%%\{)'
    r'|(?P<escape>\\(?:[nrt"\\]|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}))|(?P<close>")|(?P<lone>[$%])'
)
_RAW = re.compile(r"(?P<plain>[^$%]+)|(?P<open>\$\{|%\{)|(?P<kept>\$\$\{|%%\{)|(?P<lone>[$%])")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
_CODE_POINT_MAX = 0x10FFFF


class _Directive:
    """A `%{…}` as it was read; `kind` is if, else, endif, for or endfor."""

    def __init__(self, kind: str, at: int) -> None:
        self.kind = kind
        self.at = at
        self.test: Expression | None = None
        self.loop: tuple[str, str, Expression] | None = None


_Part = str | Expression | _Directive


class TemplateParser:
    """Reads the templates of one text. Starts at the opening token, ends right behind the closing mark."""

    def __init__(
        self,
        lexer: Lexer,
        expression: Callable[[], Expression],
        for_intro: Callable[[], tuple[str, str, Expression]],
    ) -> None:
        self._lexer = lexer
        self._expression = expression
        self._for_intro = for_intro

    def quoted(self) -> Expression:
        """Read a quoted text; the parser is at its opening quote."""
        at = self._lexer.at
        parts = self._parts(self._lexer.place, None)
        return _to_node(at, parts)

    def heredoc(self) -> Expression:
        """Read a heredoc; the parser is at its opening token."""
        lexer = self._lexer
        at = lexer.at
        start, end, is_trimmed = lexer.heredoc()
        behind = lexer.place
        parts = self._parts(start, end)
        lexer.place = behind
        if is_trimmed:
            parts = _without_indent(parts)
        return _to_node(at, parts, is_heredoc=True)

    def _parts(self, place: int, end: int | None) -> list[_Part]:
        """Cut the text from `place`: up to the closing quote, or up to `end`."""
        lexer = self._lexer
        source = lexer.source
        pattern = _QUOTED if end is None else _RAW
        limit = len(source) if end is None else end
        parts: list[_Part] = []
        strips = False
        while end is None or place < limit:
            lexer.count()
            found = pattern.match(source, place, limit)
            if found is None:
                raise _broken(source, place, lexer.at)
            place = found.end()
            kind = found.lastgroup
            if kind == "close":
                break
            if kind == "open":
                lexer.place = place
                strips = self._opened(parts, found)
                place = lexer.place
                continue
            text = _text(found)
            parts.append(text.lstrip() if strips else text)
            # A trim reaches to the first thing that is not a blank.
            strips = strips and not text.strip()
        lexer.place = place
        return parts

    def _opened(self, parts: list[_Part], found: re.Match[str]) -> bool:
        """Read one `${…}` or `%{…}` into `parts`; tell whether it trims what follows."""
        lexer = self._lexer
        lexer.down()
        before = lexer.source.startswith("~", lexer.place)
        lexer.place += before
        lexer.next()
        is_value = found[0] == "${"
        inner = self._expression() if is_value else self._directive(found.start())
        behind = lexer.is_mark("~")
        if behind:
            lexer.next()
        if not lexer.is_mark("}"):
            raise lexer.unexpected("} at the end of a template")
        lexer.up()
        if before:
            _strip_last(parts)
        parts.append(inner)
        return behind

    def _directive(self, at: int) -> _Directive:
        lexer = self._lexer
        found = _Directive(lexer.name("if, else, endif, for or endfor"), at)
        if found.kind == "if":
            found.test = self._expression()
        elif found.kind == "for":
            found.loop = self._for_intro()
        elif found.kind not in {"else", "endif", "endfor"}:
            raise HclError(f"unknown directive {found.kind!r}", at)
        return found


def _broken(source: str, place: int, opened_at: int) -> HclError:
    if source.startswith("\\", place):
        return HclError(f"unknown escape {source[place : place + 2]!r}", place)
    return HclError("string is not closed on its line", opened_at)


def _text(found: re.Match[str]) -> str:
    kind, text = found.lastgroup, found[0]
    if kind == "kept":
        return text[1:]
    if kind != "escape":
        return text
    if text[1] in _ESCAPES:
        return _ESCAPES[text[1]]
    code = int(text[2:], base=16)  # noqa: FURB166 - behind the backslash stands u, no 0x
    if code > _CODE_POINT_MAX or 0xD800 <= code <= 0xDFFF:
        raise HclError(f"{text} is not a valid character", found.start())
    return chr(code)


def _strip_last(parts: list[_Part]) -> None:
    """Take the blanks off the end of the literal text before a trimming `${~`."""
    while parts and isinstance(last := parts[-1], str):
        parts[-1] = kept = last.rstrip()
        if kept:
            return
        parts.pop()


def _without_indent(parts: list[_Part]) -> list[_Part]:
    """Take the smallest indent of all lines off each; blank lines neither count nor change."""
    lines: list[_Part] = []
    for part in parts:
        lines += part.splitlines(keepends=True) if isinstance(part, str) else [part]
    starts: list[int] = []
    indents: list[int] = []
    is_start = True
    for number, part in enumerate(lines):
        if is_start:
            text = part if isinstance(part, str) else ""
            kept = text.lstrip(" \t")
            whole = isinstance(part, str) and not kept.strip() and text.endswith("\n")
            if not whole:
                # A literal that does not end its line may be continued by one that is split off at a mark.
                indents.append(len(text) - len(kept))
                starts.append(number)
        is_start = isinstance(part, str) and part.endswith("\n")
    cut = min(indents, default=0)
    for number in starts:
        part = lines[number]
        if isinstance(part, str):
            lines[number] = part[cut:]
    return lines


def _to_node(at: int, parts: list[_Part], *, is_heredoc: bool = False) -> Expression:
    """Make one node of parts: a literal where nothing is to be worked out."""
    if all(isinstance(part, str) for part in parts):
        return Literal(at, "".join(part for part in parts if isinstance(part, str)))
    if len(parts) == 1 and isinstance(parts[0], Expression) and not is_heredoc:
        return TemplateExpression(at, (parts[0],), is_bare=True)
    builder = _TemplateBuilder(at, parts)
    found = builder.template(())
    if builder.place < len(parts):
        stray = parts[builder.place]
        assert isinstance(stray, _Directive)
        raise HclError(f"{stray.kind} without a matching start", stray.at)
    return found


class _TemplateBuilder:
    """Turns the flat directives into nested ones."""

    def __init__(self, at: int, parts: list[_Part]) -> None:
        self._at = at
        self._parts = parts
        self.place = 0

    def template(self, ends: tuple[str, ...]) -> TemplateExpression:
        """Take parts up to a directive that is one of `ends`, which stays."""
        nodes: list[Expression] = []
        while self.place < len(self._parts):
            part = self._parts[self.place]
            if isinstance(part, str):
                if part:
                    nodes.append(Literal(self._at, part))
                self.place += 1
            elif isinstance(part, Expression):
                nodes.append(part)
                self.place += 1
            elif part.kind in ends or part.kind not in {"if", "for"}:
                break
            else:
                self.place += 1
                nodes.append(self._branch(part) if part.kind == "if" else self._loop(part))
        return TemplateExpression(self._at, tuple(nodes))

    def _branch(self, start: _Directive) -> Expression:
        assert start.test is not None
        yes = self.template(("else", "endif"))
        no = TemplateExpression(start.at, ())
        if self._take("else"):
            no = self.template(("endif",))
        if not self._take("endif"):
            raise HclError("if without endif", start.at)
        return TemplateIf(start.at, start.test, yes, no)

    def _loop(self, start: _Directive) -> Expression:
        assert start.loop is not None
        key, value, source = start.loop
        body = self.template(("endfor",))
        if not self._take("endfor"):
            raise HclError("for without endfor", start.at)
        return TemplateFor(start.at, key, value, source, body)

    def _take(self, kind: str) -> bool:
        if self.place == len(self._parts):
            return False
        part = self._parts[self.place]
        if not isinstance(part, _Directive) or part.kind != kind:
            return False
        self.place += 1
        return True
