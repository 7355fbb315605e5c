"""HCL text to tree: bodies and blocks; expressions come from `expressions.py`.

The first syntax error ends the parse. Accepts more than HCL2 where old job files do: several attributes on a line,
commas between them, dots in their names.
"""

from shared.jobspec.hcl.errors import HclError
from shared.jobspec.hcl.syntax.expressions import ExpressionParser
from shared.jobspec.hcl.syntax.tree import Attribute, Block, Body, Expression, Literal


def parse_body(text: str) -> Body:
    """Parse a whole file. Raises HclError."""
    parser = _Bodies(text)
    try:
        parser.next()
        return parser.body()
    except RecursionError:
        raise HclError("nested too deeply", parser.at) from None


def parse_expression(text: str) -> Expression:
    """Parse one expression, as the value of a variable is given outside a file. Raises HclError."""
    parser = ExpressionParser(text)
    try:
        parser.next()
        found = parser.expression()
    except RecursionError:
        raise HclError("nested too deeply", parser.at) from None
    if parser.kind != "end":
        raise parser.unexpected("the end of the value")
    return found


class _Bodies(ExpressionParser):
    """Every method starts at its first token and ends at the token behind it."""

    def body(self, block: str = "", opened_at: int = 0) -> Body:
        """Parse attributes and blocks: of `block` up to its brace, else of the file."""
        attributes: list[Attribute] = []
        blocks: list[Block] = []
        names: set[str] = set()
        while not (self.is_mark("}") if block else self.kind == "end"):
            if self.kind == "end":
                raise HclError(f"block {block[:40]!r} is not closed by }}", opened_at)
            at = self.at
            name = self._key("an attribute or a block")
            if self.is_mark("="):
                if name in names:
                    raise HclError(f"{name[:40]!r} is set twice", at)
                names.add(name)
                self.next()
                attributes.append(Attribute(name, self.expression(), at))
            else:
                blocks.append(self._block(name, at))
            if self.is_mark(","):
                self.next()
        return Body(tuple(attributes), tuple(blocks))

    def _key(self, wanted: str) -> str:
        """Take the name of an attribute or block; old files have dots in it."""
        if self.is_mark('"'):
            text = "the name of an attribute or block is not quoted; a map takes any name"
            raise HclError(f'{text}: env = {{ "a.b" = "c" }}', self.at)
        name = self._word(wanted)
        while self.is_mark("."):
            self.next()
            name += "." + self.name("a name after the dot")
        return name

    def _word(self, wanted: str) -> str:
        """Take a name, plain or quoted."""
        if self.kind == "name":
            name = self.text
            self.next()
            return name
        if not self.is_mark('"'):
            raise self.unexpected(wanted)
        at = self.at
        found = self.templates.quoted()
        self.next()
        if not isinstance(found, Literal):
            raise HclError("a name or label cannot hold a template", at)
        return str(found.value)

    def _block(self, name: str, at: int) -> Block:
        labels: list[str] = []
        while not self.is_mark("{"):
            if self.starts_line or self.kind == "end":
                raise HclError(f"{name[:40]!r} needs = and a value, or a body in braces", at)
            labels.append(self._word(f"=, a label or {{ after {name[:40]!r}"))
        self.down()
        self.next()
        body = self.body(name, at)
        self.up()
        self.next()
        return Block(name, tuple(labels), body, at)
