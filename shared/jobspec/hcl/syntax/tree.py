"""The tree of an HCL text: what the parser found, before anything is evaluated.

Nodes hold values that the text shows, and `at`, the character offset where they start. A traversal keeps its own text,
because a reference that only a node can answer stays in the job as it was written.
"""

import msgspec


class Expression(msgspec.Struct, frozen=True, gc=False):
    """Any expression."""

    at: int


class Literal(Expression, frozen=True, gc=False):
    """A number, a text without templates, true, false or null."""

    value: str | int | float | bool | None


class TemplateExpression(Expression, frozen=True, gc=False):
    """Text with `${}` and `%{}` in it. `is_bare`: nothing but one `${}`, whose value is taken as it is."""

    parts: tuple[Expression, ...]
    is_bare: bool = False


class TemplateIf(Expression, frozen=True, gc=False):
    """`%{ if test }yes%{ else }no%{ endif }`."""

    test: Expression
    yes: TemplateExpression
    no: TemplateExpression


class TemplateFor(Expression, frozen=True, gc=False):
    """`%{ for key, value in source }body%{ endfor }`; `key` may be empty."""

    key: str
    value: str
    source: Expression
    body: TemplateExpression


class Traversal(Expression, frozen=True, gc=False):
    """A name and the constant steps after it: `var.a.b`, `attr.kernel.name`, `env["HOME"]`, `NOMAD_PORT_http`."""

    root: str
    steps: tuple[str | int, ...]
    text: str


class GetAttr(Expression, frozen=True, gc=False):
    """`object.name` where the object is more than a name."""

    source: Expression
    name: str


class Index(Expression, frozen=True, gc=False):
    """`object[key]`."""

    source: Expression
    key: Expression


class Splat(Expression, frozen=True, gc=False):
    """`source[*].steps`: the steps of each element; a step is a name or a key."""

    source: Expression
    steps: tuple[str | Expression, ...]


class FunctionCall(Expression, frozen=True, gc=False):
    """`name(arguments)`; `is_expanded`: the last argument is a list of arguments."""

    name: str
    arguments: tuple[Expression, ...]
    is_expanded: bool = False


class Unary(Expression, frozen=True, gc=False):
    """`-x` or `!x`."""

    operator: str
    operand: Expression


class Binary(Expression, frozen=True, gc=False):
    """`left operator right`."""

    operator: str
    left: Expression
    right: Expression


class Conditional(Expression, frozen=True, gc=False):
    """`test ? yes : no`."""

    test: Expression
    yes: Expression
    no: Expression


class ListLiteral(Expression, frozen=True, gc=False):
    """`[a, b]`."""

    items: tuple[Expression, ...]


class ObjectLiteral(Expression, frozen=True, gc=False):
    """`{ a = 1, (b) = 2 }`."""

    items: tuple[tuple[Expression, Expression], ...]


class ForExpression(Expression, frozen=True, gc=False):
    """`[for k, v in source : value if test]`; with `result_key` an object, `is_grouped` collects equal keys."""

    key: str
    value: str
    source: Expression
    result_key: Expression | None
    result: Expression
    test: Expression | None
    is_grouped: bool = False


class Attribute(msgspec.Struct, frozen=True, gc=False):
    """`name = value` in a body."""

    name: str
    value: Expression
    at: int


class Body(msgspec.Struct, frozen=True, gc=False):
    """What is between the braces of a block, or in a whole file."""

    attributes: tuple[Attribute, ...]
    blocks: tuple["Block", ...]


class Block(msgspec.Struct, frozen=True, gc=False):
    """`name "label" { … }`."""

    name: str
    labels: tuple[str, ...]
    body: Body
    at: int
