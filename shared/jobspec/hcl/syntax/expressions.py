"""HCL expressions, by recursive descent.

Decides what an expression is; `templates.py` cuts texts and calls back for the expressions in them. New lines mean
nothing between the tokens of an expression: nothing that may follow one could continue with it, except in objects,
whose items they separate. Linear in the text; nesting is bounded by DEPTH_MAX.
"""

from shared.jobspec.hcl.errors import DEPTH_MAX, HclError
from shared.jobspec.hcl.syntax.lexer import Lexer, parse_number
from shared.jobspec.hcl.syntax.templates import TemplateParser
from shared.jobspec.hcl.syntax.tree import (
    Binary,
    Conditional,
    Expression,
    ForExpression,
    FunctionCall,
    GetAttr,
    Index,
    ListLiteral,
    Literal,
    ObjectLiteral,
    Splat,
    Traversal,
    Unary,
)

#: operator -> how tightly it binds.
_BINDING = {
    "||": 1,
    "&&": 2,
    "==": 3,
    "!=": 3,
    "<": 4,
    ">": 4,
    "<=": 4,
    ">=": 4,
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
    "%": 6,
}
_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


class ExpressionParser(Lexer):
    """Every method starts at its first token and ends at the token behind it."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.templates = TemplateParser(self, self.expression, self.for_intro)

    def expression(self) -> Expression:
        """Parse one expression."""
        self.down()
        at = self.at
        found = self._binary(1)
        if self.is_mark("?"):
            self.next()
            yes = self.expression()
            self.expect(":")
            found = Conditional(at, found, yes, self.expression())
        self.up()
        return found

    def _binary(self, lowest: int) -> Expression:
        """Climb precedences from `lowest` up."""
        at = self.at
        left = self._unary()
        while self.kind == "mark" and (binding := _BINDING.get(self.text, 0)) >= lowest:
            operator = self.text
            self.next()
            left = Binary(at, operator, left, self._binary(binding + 1))
        return left

    def _unary(self) -> Expression:
        if self.is_mark("-") or self.is_mark("!"):
            at, operator = self.at, self.text
            self.down()
            self.next()
            operand = self._unary()
            self.up()
            return Unary(at, operator, operand)
        return self._postfix()

    def _postfix(self) -> Expression:
        """Parse a term and what is taken from it."""
        at = self.at
        if self.kind == "name" and self.text not in _CONSTANTS:
            found = self._named()
        else:
            found = self._term()
        steps = 0
        while self.is_mark(".") or (self.is_mark("[") and not self.starts_line):
            found = self._step(at, found)
            steps += 1
            if steps > DEPTH_MAX:
                raise HclError(f"more than {DEPTH_MAX} steps", at)
        return found

    def _named(self) -> Expression:
        """Parse a function call, or a name with its constant steps."""
        at, name, ended = self.at, self.text, self.place
        self.next()
        if self.is_mark("(") and self.at == ended:
            return self._call(at, name)
        if self.is_mark("::"):
            raise HclError(f"namespaced functions ({name[:40]}::…) are not supported", at)
        steps: list[str | int] = []
        while len(steps) < DEPTH_MAX and self._is_constant_step():
            step, ended = self._constant_step()
            steps.append(step)
        return Traversal(at, name, tuple(steps), self.source[at:ended])

    def _is_constant_step(self) -> bool:
        """Return whether `.name`, `.0`, `["key"]` or `[0]` follows, without going there."""
        if self.is_mark("."):
            return self.source[self.place : self.place + 1] not in {"*", ""}
        if not self.is_mark("[") or self.starts_line:
            return False
        ended = self.source.find("]", self.place, self.place + 200)
        inner = self.source[self.place : ended].strip() if ended > 0 else ""
        if inner.isascii() and inner.isdecimal():
            return len(inner) < 10
        quoted = len(inner) > 1 and inner[0] == inner[-1] == '"'
        return quoted and not any(mark in inner[1:-1] for mark in '"\\$%\n')

    def _constant_step(self) -> tuple[str | int, int]:
        """Take a step that is there: the step, and the offset behind it."""
        if self.is_mark("["):
            ended = self.source.index("]", self.place)
            inner = self.source[self.place : ended].strip()
            self.place = ended + 1
            self.next()
            return (inner[1:-1] if inner[0] == '"' else int(inner)), ended + 1
        digits = self.digits()
        if digits is not None:
            ended = self.place
            self.next()
            return digits, ended
        self.next()
        name, ended = self.text, self.place
        if self.kind != "name":
            raise self.unexpected("a name after the dot")
        self.next()
        return name, ended

    def _step(self, at: int, source: Expression) -> Expression:
        """Parse one `.name`, `.0`, `.*`, `[key]` or `[*]` behind a term."""
        if self.is_mark("."):
            if (digits := self.digits()) is not None:
                self.next()
                return Index(at, source, Literal(at, digits))
            self.next()
            if self.is_mark("*"):
                return self._splat(at, source, is_attribute=True)
            return GetAttr(at, source, self.name("a name after the dot"))
        self.next()
        if self.is_mark("*"):
            self.next()
            if not self.is_mark("]"):
                raise self.unexpected("] after *")
            return self._splat(at, source, is_attribute=False)
        key = self.expression()
        self.expect("]")
        return Index(at, source, key)

    def _splat(self, at: int, source: Expression, *, is_attribute: bool) -> Expression:
        """Parse what is taken from each element, from the closing mark of the splat on."""
        self.next()
        steps: list[str | Expression] = []
        while self.is_mark(".") or (
            self.is_mark("[") and not is_attribute and not self.starts_line
        ):
            if len(steps) == DEPTH_MAX:
                raise HclError(f"more than {DEPTH_MAX} steps", at)
            if self.is_mark("["):
                self.next()
                steps.append(self.expression())
                self.expect("]")
            elif (digits := self.digits()) is not None:
                self.next()
                steps.append(Literal(at, digits))
            else:
                self.next()
                steps.append(self.name("a name after the dot"))
        return Splat(at, source, tuple(steps))

    def _term(self) -> Expression:
        at, kind, text = self.at, self.kind, self.text
        if kind == "number":
            self.next()
            return Literal(at, parse_number(text, at))
        if kind == "name" and text in _CONSTANTS:
            self.next()
            return Literal(at, _CONSTANTS[text])
        if kind == "heredoc":
            found = self.templates.heredoc()
            self.next()
            return found
        if self.is_mark('"'):
            found = self.templates.quoted()
            self.next()
            return found
        if self.is_mark("("):
            self.next()
            found = self.expression()
            self.expect(")")
            return found
        if self.is_mark("["):
            return self._list()
        if self.is_mark("{"):
            return self._object()
        raise self.unexpected("a value")

    def _call(self, at: int, name: str) -> Expression:
        self.next()
        arguments: list[Expression] = []
        is_expanded = False
        while not self.is_mark(")"):
            arguments.append(self.expression())
            if self.is_mark("..."):
                is_expanded = True
                self.next()
            if is_expanded or not self.is_mark(","):
                break
            self.next()
        self.expect(")")
        return FunctionCall(at, name, tuple(arguments), is_expanded)

    def _list(self) -> Expression:
        at = self.at
        self.next()
        if self.kind == "name" and self.text == "for":
            return self._for(at, "]")
        items: list[Expression] = []
        while not self.is_mark("]"):
            items.append(self.expression())
            if not self.is_mark(","):
                break
            self.next()
        self.expect("]")
        return ListLiteral(at, tuple(items))

    def _object(self) -> Expression:
        at = self.at
        self.next()
        if self.kind == "name" and self.text == "for" and not self._is_key():
            return self._for(at, "}")
        items: list[tuple[Expression, Expression]] = []
        while not self.is_mark("}"):
            items.append(self._item())
            if self.is_mark(","):
                self.next()
            elif not (self.starts_line or self.is_mark("}")):
                raise self.unexpected("a comma, a new line or }")
        self.expect("}")
        return ObjectLiteral(at, tuple(items))

    def _item(self) -> tuple[Expression, Expression]:
        """Parse one `key = value`: a plain name is a key, `(expression)` is worked out."""
        if self.kind == "name" and self._is_key():
            key: Expression = Literal(self.at, self.text)
            self.next()
        else:
            key = self.expression()
        if self.is_mark("{"):
            # Old files have blocks in objects.
            return key, self._object()
        if not (self.is_mark("=") or self.is_mark(":")):
            raise self.unexpected("= after the key of an object")
        self.next()
        return key, self.expression()

    def _is_key(self) -> bool:
        """Return whether the current name is followed by = or :, as the key of an object is."""
        rest = self.source[self.place : self.place + 200].lstrip(" \t")
        return rest[:1] in {"=", ":", "{"} and rest[:2] not in {"==", "=>", "::"}

    def _for(self, at: int, closed_by: str) -> Expression:
        """Parse from the word `for` to the closing bracket."""
        self.next()
        key, value, source = self.for_intro()
        self.expect(":")
        result = self.expression()
        result_key = None
        if closed_by == "}":
            result_key = result
            self.expect("=>")
            result = self.expression()
        is_grouped = self.is_mark("...")
        if is_grouped:
            self.next()
        test = None
        if self.kind == "name" and self.text == "if":
            self.next()
            test = self.expression()
        self.expect(closed_by)
        return ForExpression(at, key, value, source, result_key, result, test, is_grouped)

    def for_intro(self) -> tuple[str, str, Expression]:
        """Parse `k, v in source` or `v in source`."""
        key, value = "", self.name("a name")
        if self.is_mark(","):
            self.next()
            key, value = value, self.name("a name")
        if self.kind != "name" or self.text != "in":
            raise self.unexpected("in")
        self.next()
        return key, value, self.expression()
