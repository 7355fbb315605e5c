"""The tree of a template: what the parser found, before anything is evaluated. `at` is the character offset."""

from typing import Any

import msgspec


class Node(msgspec.Struct, frozen=True, gc=False):
    """Any node."""

    at: int


class WordNode(Node, frozen=True, gc=False):
    """One word of a command."""


class Dot(WordNode, frozen=True, gc=False):
    """`.`: the current value."""


class Nil(WordNode, frozen=True, gc=False):
    """`nil`: allowed as an argument alone."""


class Constant(WordNode, frozen=True, gc=False):
    """A text, number, character or truth value. `source` is the text as written."""

    value: str | int | float | bool
    source: str


class FieldPath(WordNode, frozen=True, gc=False):
    """`.a.b`: fields of the current value."""

    names: tuple[str, ...]


class VariablePath(WordNode, frozen=True, gc=False):
    """`$x.a.b`; the name of `$` is "$"."""

    name: str
    names: tuple[str, ...]


class FieldChain(WordNode, frozen=True, gc=False):
    """`(pipeline).a.b` or `function.a.b`."""

    source: WordNode
    names: tuple[str, ...]


class FunctionName(WordNode, frozen=True, gc=False):
    """The name of a function; it is called where it stands."""

    name: str


class PipelineCommand(Node, frozen=True, gc=False):
    """Words: a value, or something that is called with arguments."""

    words: tuple[WordNode, ...]


class Pipeline(WordNode, frozen=True, gc=False):
    """Commands, each one given the value of the one before; in parentheses an operand."""

    commands: tuple[PipelineCommand, ...]
    variables: tuple[str, ...] = ()
    #: `=` rather than `:=`.
    is_assignment: bool = False


class Text(Node, frozen=True, gc=False):
    """Text between actions."""

    text: str


class PipelineAction(Node, frozen=True, gc=False):
    """`{{ pipeline }}`."""

    pipeline: Pipeline


Body = tuple[Node, ...]


class Branch(Node, frozen=True, gc=False):
    """`if`, or `with`, which changes the current value."""

    pipeline: Pipeline
    body: Body
    otherwise: Body
    is_with: bool


class Range(Node, frozen=True, gc=False):
    """`range`."""

    pipeline: Pipeline
    body: Body
    otherwise: Body


class TemplateCall(Node, frozen=True, gc=False):
    """`{{ template "name" pipeline }}`."""

    name: str
    pipeline: Pipeline | None


class LoopExit(Node, frozen=True, gc=False):
    """`break` or `continue`."""

    is_break: bool


#: Anything that the parser returns.
AnyNode = Any
