"""The tree of an HCL text: what the parser found, before anything is evaluated.

Nodes hold values that the text shows, and `at`, the character offset where they start. A traversal keeps its own text,
because a reference that only a node can answer stays in the job as it was written.
"""

import msgspec


class Node(msgspec.Struct, frozen=True, gc=False):
    """Any expression."""

    at: int


class Literal(Node, frozen=True, gc=False):
    """A number, a text without templates, true, false or null."""

    value: str | int | float | bool | None


class Template(Node, frozen=True, gc=False):
    """Text with `${}` and `%{}` in it. `is_bare`: nothing but one `${}`, whose value is taken as it is."""

    parts: tuple[Node, ...]
    is_bare: bool = False


class TemplateIf(Node, frozen=True, gc=False):
    """`%{ if test }yes%{ else }no%{ endif }`."""

    test: Node
    yes: Template
    no: Template


class TemplateFor(Node, frozen=True, gc=False):
    """`%{ for key, value in source }body%{ endfor }`; `key` may be empty."""

    key: str
    value: str
    source: Node
    body: Template


class Traversal(Node, frozen=True, gc=False):
    """A name and the constant steps after it: `var.a.b`, `attr.kernel.name`, `env["HOME"]`, `NOMAD_PORT_http`."""

    root: str
    steps: tuple[str | int, ...]
    text: str


class GetAttr(Node, frozen=True, gc=False):
    """`object.name` where the object is more than a name."""

    source: Node
    name: str


class Index(Node, frozen=True, gc=False):
    """`object[key]`."""

    source: Node
    key: Node


class Splat(Node, frozen=True, gc=False):
    """`source[*].steps`: the steps of each element; a step is a name or a key."""

    source: Node
    steps: tuple[str | Node, ...]


class Call(Node, frozen=True, gc=False):
    """`name(arguments)`; `is_expanded`: the last argument is a list of arguments."""

    name: str
    arguments: tuple[Node, ...]
    is_expanded: bool = False


class Unary(Node, frozen=True, gc=False):
    """`-x` or `!x`."""

    operator: str
    operand: Node


class Binary(Node, frozen=True, gc=False):
    """`left operator right`."""

    operator: str
    left: Node
    right: Node


class Conditional(Node, frozen=True, gc=False):
    """`test ? yes : no`."""

    test: Node
    yes: Node
    no: Node


class ListOf(Node, frozen=True, gc=False):
    """`[a, b]`."""

    items: tuple[Node, ...]


class ObjectOf(Node, frozen=True, gc=False):
    """`{ a = 1, (b) = 2 }`."""

    items: tuple[tuple[Node, Node], ...]


class For(Node, frozen=True, gc=False):
    """`[for k, v in source : value if test]`; with `result_key` an object, `is_grouped` collects equal keys."""

    key: str
    value: str
    source: Node
    result_key: Node | None
    result: Node
    test: Node | None
    is_grouped: bool = False


class Attribute(msgspec.Struct, frozen=True, gc=False):
    """`name = value` in a body."""

    name: str
    value: Node
    at: int


class Body(msgspec.Struct, frozen=True, gc=False):
    """What stands between the braces of a block, or in a whole file."""

    attributes: tuple[Attribute, ...]
    blocks: tuple["Block", ...]


class Block(msgspec.Struct, frozen=True, gc=False):
    """`name "label" { … }`."""

    name: str
    labels: tuple[str, ...]
    body: Body
    at: int
