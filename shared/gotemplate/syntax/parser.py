"""Parses a template: tokens to tree. The names of functions are checked by the caller's `FunctionCheck`."""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from shared.gotemplate.errors import TemplateError
from shared.gotemplate.syntax.constants import read_character, read_number, read_raw, read_string
from shared.gotemplate.syntax.lexer import TemplateLexer, Token
from shared.gotemplate.syntax.tree import (
    AnyNode,
    Body,
    Branch,
    Constant,
    Dot,
    FieldChain,
    FieldPath,
    FunctionName,
    LoopExit,
    Nil,
    Node,
    Pipeline,
    PipelineAction,
    PipelineCommand,
    Range,
    TemplateCall,
    Text,
    VariablePath,
    WordNode,
)

#: Blocks and parentheses inside one another.
DEPTH_MAX: Final = 64
_OPERANDS: Final = frozenset(
    ("bool", "character", "dot", "field", "name", "number", "raw", "string", "variable", "open")
)

#: Tokens of one template: those of the largest configs many times over, in a fraction of a second.
TOKENS_MAX: Final = 50_000

#: Called with the name of each function and its place; records a fault or does nothing.
FunctionCheck = Callable[[str, int], None]
#: The name of a function, the text that is its first argument, and where it stands.
ArgumentCheck = Callable[[str, str, int], None]


class Definition(msgspec.Struct, frozen=True):
    """A `define`, a `block` or the text itself, whose name is empty."""

    name: str
    body: Body


class _Scope:
    """What a `define` begins anew: the variables that are known, and the ranges around."""

    def __init__(self) -> None:
        self.variables = ["$"]
        self.ranges = 0


class Parser:
    """A parse of one text. Raises TemplateError."""

    def __init__(
        self,
        text: str,
        delimiters: tuple[str, str],
        check: FunctionCheck,
        check_argument: ArgumentCheck,
    ) -> None:
        self._tokens = TemplateLexer(text, *delimiters).tokens()
        self._ahead: list[Token] = []
        self._check = check
        self._check_argument = check_argument
        self._scope = _Scope()
        self._depth = 0
        self._read_count = 0
        self.definitions: dict[str, Body] = {}

    def parse(self) -> dict[str, Body]:
        """Parse the text: every definition by name."""
        body: list[Node] = []
        while (token := self._next()).kind != "end":
            if token.kind == "text":
                body.append(Text(token.at, token.text))
                continue
            if self._peek().text == "define" and self._peek().kind == "keyword":
                self._next()
                self._define(token.at)
                continue
            body.append(self._finished(self._action(token.at)))
        self._add("", tuple(body), 0)
        return self.definitions

    # ---- tokens ----

    def _next(self, *, spaces: bool = False) -> Token:
        while True:
            token = self._ahead.pop() if self._ahead else self._read()
            if spaces or token.kind != "space":
                return token

    def _read(self) -> Token:
        token = next(self._tokens)
        self._read_count += 1
        if self._read_count > TOKENS_MAX:
            raise TemplateError(f"the template has more than {TOKENS_MAX} tokens", token.at)
        return token

    def _back(self, *tokens: Token) -> None:
        """Give tokens back; the first of them is the next."""
        self._ahead += reversed(tokens)

    def _peek(self, *, spaces: bool = False) -> Token:
        token = self._next(spaces=spaces)
        self._back(token)
        return token

    def _close(self, context: str) -> None:
        token = self._next()
        if token.kind != "right":
            raise _unexpected(token, context)

    # ---- blocks ----

    def _add(self, name: str, body: Body, at: int) -> None:
        """Keep a definition; of two with content the second is a fault, an empty one gives way."""
        known = self.definitions.get(name)
        if known is None or _is_empty(known):
            self.definitions[name] = body
        elif not _is_empty(body):
            raise TemplateError(f"template {name[:40]!r} is defined twice", at)

    def _define(self, at: int) -> None:
        name = self._template_name("define")
        self._close("define")
        self._definition(name, at)

    def _definition(self, name: str, at: int) -> None:
        outer, self._scope = self._scope, _Scope()
        body, ender = self._body()
        if ender != "end":
            raise TemplateError(f"unexpected {{{{{ender}}}}} in define", at)
        self._add(name, body, at)
        self._scope = outer

    def _template_name(self, context: str) -> str:
        token = self._next()
        if token.kind not in {"string", "raw"}:
            raise _unexpected(token, context)
        return read_raw(token.text) if token.kind == "raw" else read_string(token.text, token.at)

    def _body(self) -> tuple[Body, str]:
        """Parse to the `end` or `else` that closes; return which."""
        self._deeper(self._peek().at)
        found: list[Node] = []
        while (token := self._next()).kind != "end":
            if token.kind == "text":
                found.append(Text(token.at, token.text))
                continue
            node = self._action(token.at)
            if isinstance(node, str):
                self._depth -= 1
                return tuple(found), node
            found.append(node)
        raise TemplateError("unexpected end of the template: {{end}} is missing", token.at)

    def _deeper(self, at: int) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise TemplateError(f"nested deeper than {DEPTH_MAX} levels", at)

    def _finished(self, node: Node | str) -> Node:
        if isinstance(node, str):
            raise TemplateError(f"unexpected {{{{{node}}}}}", self._ender_at)
        return node

    _ender_at = 0

    def _action(self, at: int) -> AnyNode:
        """Parse behind a left delimiter: a node, or the name of what closes a block."""
        token = self._next()
        if token.kind != "keyword" or token.text == "nil":
            self._back(token)
            return PipelineAction(token.at, self._pipeline("command", "right"))
        keyword = token.text
        if keyword in {"if", "with", "range"}:
            return self._control(keyword, at)
        if keyword in {"end", "else"}:
            self._ender_at = at
            if keyword == "else" and self._peek().text in {"if", "with"}:
                return "else " + self._peek().text
            self._close(keyword)
            return keyword
        if keyword in {"break", "continue"}:
            self._close(keyword)
            if not self._scope.ranges:
                raise TemplateError(f"{{{{{keyword}}}}} outside {{{{range}}}}", at)
            return LoopExit(at, keyword == "break")
        if keyword == "define":
            raise TemplateError("unexpected define inside a block", at)
        return self._template(at) if keyword == "template" else self._block(at)

    def _template(self, at: int) -> Node:
        name = self._template_name("template")
        if self._peek().kind == "right":
            self._next()
            return TemplateCall(at, name, None)
        return TemplateCall(at, name, self._pipeline("template", "right"))

    def _block(self, at: int) -> Node:
        name = self._template_name("block")
        pipeline = self._pipeline("block", "right")
        self._definition(name, at)
        return TemplateCall(at, name, pipeline)

    def _control(self, keyword: str, at: int) -> Node:
        known = len(self._scope.variables)
        pipeline = self._pipeline(keyword, "right")
        self._scope.ranges += keyword == "range"
        body, ender = self._body()
        self._scope.ranges -= keyword == "range"
        otherwise: Body = ()
        if ender == "else " + keyword != "else range":
            token = self._next()
            self._deeper(token.at)
            otherwise = (self._control(keyword, token.at),)
            self._depth -= 1
        elif ender != "end":
            if ender != "else":
                raise TemplateError(f"unexpected {{{{{ender}}}}} in {keyword}", self._ender_at)
            otherwise, ender = self._body()
            if ender != "end":
                raise TemplateError(f"expected {{{{end}}}}, found {{{{{ender}}}}}", self._ender_at)
        del self._scope.variables[known:]
        if keyword == "range":
            return Range(at, pipeline, body, otherwise)
        return Branch(at, pipeline, body, otherwise, keyword == "with")

    # ---- pipelines ----

    def _pipeline(self, context: str, end: str) -> Pipeline:
        at = self._peek().at
        variables, is_assignment = self._declarations(context)
        commands: list[PipelineCommand] = []
        while (token := self._next()).kind != end:
            if token.kind not in _OPERANDS and token.text != "nil":
                raise _unexpected(token, context)
            self._back(token)
            command = self._command()
            if commands and isinstance(command.words[0], Constant | Dot | Nil):
                raise TemplateError("only the first stage of a pipeline can be a value", command.at)
            commands.append(command)
        if not commands:
            raise TemplateError(f"missing value for {context}", at)
        return Pipeline(at, tuple(commands), tuple(variables), is_assignment)

    def _declarations(self, context: str) -> tuple[list[str], bool]:
        """Parse `$x :=`, `$x =` and `$i, $x :=`."""
        names: list[str] = []
        while self._peek().kind == "variable":
            variable = self._next()
            behind = self._next(spaces=True)
            spaces = [behind] if behind.kind == "space" else []
            after = self._next() if spaces else behind
            if after.kind in {"assign", "declare"}:
                names.append(self._declared(variable))
                return names, after.kind == "assign"
            if after.kind == "other" and after.text == ",":
                names.append(self._declared(variable))
                if context != "range" or len(names) > 1:
                    raise TemplateError(f"too many declarations in {context}", variable.at)
                if self._peek().kind not in {"variable", "right", "close"}:
                    raise TemplateError("range can only declare variables", self._peek().at)
                continue
            self._back(variable, *spaces, after)
            break
        return names, False

    def _declared(self, variable: Token) -> str:
        self._scope.variables.append(variable.text)
        return variable.text

    def _command(self) -> PipelineCommand:
        words: list[WordNode] = []
        at = self._peek().at
        while True:
            operand = self._operand()
            if operand is not None:
                words.append(operand)
            token = self._next(spaces=True)
            if token.kind == "space":
                continue
            if token.kind in {"right", "close"}:
                self._back(token)
            elif token.kind != "pipe":
                raise _unexpected(token, "operand")
            break
        if not words:
            raise TemplateError("empty command", at)
        if len(words) > 1 and isinstance(words[0], FunctionName):
            first = words[1]
            if isinstance(first, Constant) and isinstance(first.value, str):
                self._check_argument(words[0].name, first.value, at)
        return PipelineCommand(words[0].at, tuple(words))

    def _operand(self) -> WordNode | None:
        term = self._term()
        if term is None or self._peek(spaces=True).kind != "field":
            return term
        if isinstance(term, Constant | Dot | Nil):
            raise TemplateError("unexpected . after a value", self._peek().at)
        names: list[str] = []
        while self._peek(spaces=True).kind == "field":
            names.append(self._next().text[1:])
        if isinstance(term, FieldPath):
            return FieldPath(term.at, (*term.names, *names))
        if isinstance(term, VariablePath):
            return VariablePath(term.at, term.name, (*term.names, *names))
        return FieldChain(term.at, term, tuple(names))

    def _term(self) -> WordNode | None:
        token = self._next()
        kind, text, at = token
        if kind == "name":
            self._check(text, at)
            return FunctionName(at, text)
        if kind == "dot":
            return Dot(at)
        if kind == "field":
            return FieldPath(at, (text[1:],))
        if kind == "variable":
            if text not in self._scope.variables:
                raise TemplateError(f"undefined variable {text[:40]}", at)
            return VariablePath(at, text, ())
        if kind == "open":
            self._deeper(at)
            inner = self._pipeline("parentheses", "close")
            self._depth -= 1
            return inner
        if kind == "keyword" and text == "nil":
            return Nil(at)
        if kind in {"bool", "number", "character", "string", "raw"}:
            return Constant(at, _constant(token), text)
        self._back(token)
        return None


def _constant(token: Token) -> str | int | float | bool:
    kind, text, at = token
    if kind == "bool":
        return text == "true"
    if kind == "number":
        return read_number(text, at)
    if kind == "character":
        return read_character(text, at)
    return read_raw(text) if kind == "raw" else read_string(text, at)


def _is_empty(nodes: Iterable[Node]) -> bool:
    """Return whether a body has nothing but blanks."""
    return all(isinstance(node, Text) and not node.text.strip() for node in nodes)


def _unexpected(token: Token, context: str) -> TemplateError:
    if token.kind == "end":
        return TemplateError("unexpected end of the template", token.at)
    what = "}}" if token.kind == "right" else token.text[:40]
    return TemplateError(f"unexpected {what!r} in {context}", token.at)
