"""Evaluates the tree of a template once, within a budget of steps, bytes and depth.

Each node is a step; texts, lists and maps that a function takes or returns are charged by their size, so that the work
is bounded for any template and any data.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from shared.gotemplate.data import TemplateData
from shared.gotemplate.errors import TemplateError, TemplateLimitExceeded
from shared.gotemplate.functions.registry import (
    FUNCTIONS,
    TemplateFunction,
    checked,
    constant_for,
)
from shared.gotemplate.layouts.printing import printed
from shared.gotemplate.syntax.tree import (
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
from shared.gotemplate.values import (
    UNDEFINED,
    Channel,
    GoObject,
    ObjectMap,
    Value,
    is_true,
    sorted_items,
    type_name,
    work_size,
    zero_of,
)

STEPS_MAX: Final = 1_000_000
OUTPUT_BYTES_MAX: Final = 4 * 1024 * 1024
#: Templates that call templates.
CALLS_MAX: Final = 64
#: There is no value from the stage before.
_NONE: Final = object()

Variables = list[tuple[str, Value]]


class Execution:
    """One pass over a template. `missing` and `used` are keys of data in the order met."""

    def __init__(
        self,
        definitions: Mapping[str, Body],
        data: TemplateData,
        *,
        is_missing_key_error: bool = False,
        steps: int = STEPS_MAX,
        output_max: int = OUTPUT_BYTES_MAX,
    ) -> None:
        self.definitions = definitions
        self.data = data
        self.steps = steps
        self.missing: dict[str, None] = {}
        self.used: dict[str, None] = {}
        self.scratch: dict[str, Value] = {}
        self._is_missing_key_error = is_missing_key_error
        self._output_max = output_max
        self._bytes = 0
        self._parts: list[str] = []
        self._variables: Variables = []
        self._calls = 0
        self._dot: Value = UNDEFINED

    # ---- budget ----

    def charge(self, steps: int) -> None:
        """Take steps from the budget. Raises TemplateLimitExceeded."""
        self.steps -= steps
        if self.steps < 0:
            raise TemplateLimitExceeded("the template exceeds its limit of steps")

    def charge_size(self, value: Value) -> None:
        """Take the size of a value from the budget. Raises TemplateLimitExceeded."""
        if isinstance(value, str):
            self.check_text(len(value))
            self.charge(len(value) >> 6)
        elif isinstance(value, list | dict | GoObject):
            self.charge(work_size(value, self.steps))

    def check_text(self, size: int) -> None:
        """Refuse a text that is too long, before it is made. Raises TemplateLimitExceeded."""
        if size > self._output_max:
            raise TemplateLimitExceeded(f"a text of more than {self._output_max} bytes")

    def _write(self, text: str) -> None:
        self._bytes += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if self._bytes > self._output_max:
            raise TemplateLimitExceeded(f"the output has more than {self._output_max} bytes")
        self._parts.append(text)

    # ---- templates ----

    def run(self, name: str = "", dot: Value = UNDEFINED) -> str:
        """Evaluate a definition and return its text. Raises TemplateError."""
        outer, self._parts = self._parts, []
        try:
            self._call(name, dot)
            return "".join(self._parts)
        except RecursionError:
            raise TemplateLimitExceeded("the template is nested too deeply") from None
        finally:
            self._parts = outer

    def _call(self, name: str, dot: Value) -> None:
        body = self.definitions.get(name)
        if body is None:
            raise TemplateError(f"template {name[:40]!r} is not defined")
        self._calls += 1
        if self._calls > CALLS_MAX:
            raise TemplateLimitExceeded(f"templates call templates deeper than {CALLS_MAX} levels")
        # A template sees no variable of its caller.
        outer = self._variables, self._dot
        self._variables, self._dot = [("$", dot)], dot
        self._walk(body)
        self._variables, self._dot = outer
        self._calls -= 1

    def _walk(self, body: Body) -> LoopExit | None:
        """Evaluate nodes; a `break` or `continue` ends it and is returned."""
        for node in body:
            self.steps -= 1
            if self.steps < 0:
                raise TemplateLimitExceeded("the template exceeds its limit of steps", node.at)
            try:
                ended = self._WALKERS[type(node)](self, node)
            except TemplateError as fault:
                if fault.at < 0:
                    fault.at = node.at
                raise
            if ended is not None:
                return ended
        return None

    def _text(self, node: Text) -> None:
        self._write(node.text)

    def _action(self, node: PipelineAction) -> None:
        value = self._pipeline(node.pipeline)
        if not node.pipeline.variables:
            self.charge_size(value)
            if isinstance(value, Channel) or callable(value):
                raise TemplateError(f"can't print a value of type {type_name(value)}")
            self._write(printed(value))

    def _exit(self, node: LoopExit) -> LoopExit:
        return node

    def _template(self, node: TemplateCall) -> None:
        dot = self._pipeline(node.pipeline) if node.pipeline else UNDEFINED
        self._call(node.name, dot)

    def _branch(self, node: Branch) -> LoopExit | None:
        depth, dot = len(self._variables), self._dot
        value = self._pipeline(node.pipeline)
        if is_true(value):
            if node.is_with:
                self._dot = value
            ended = self._walk(node.body)
        else:
            ended = self._walk(node.otherwise)
        self._dot = dot
        del self._variables[depth:]
        return ended

    def _range(self, node: Range) -> LoopExit | None:
        depth, dot = len(self._variables), self._dot
        value = self._pipeline(node.pipeline)
        pairs = self._pairs(value, node.pipeline)
        ended: LoopExit | None = None
        if not pairs:
            ended = self._walk(node.otherwise)
        inner = len(self._variables)
        for key, element in pairs:
            self.charge(1)
            self._set_loop_variables(node.pipeline, key, element)
            # Methods and fields are taken of what an interface holds.
            self._dot = element
            found = self._walk(node.body)
            del self._variables[inner:]
            if found is not None and found.is_break:
                break
        self._dot = dot
        del self._variables[depth:]
        return ended

    def _pairs(self, value: Value, pipeline: Pipeline) -> Any:
        """List keys and elements of what is ranged over. Raises TemplateError."""
        if value is UNDEFINED or value is None:
            return ()
        if isinstance(value, list):
            # Not a copy: a `break` would have paid for none of it.
            return _Numbered(value)
        if isinstance(value, dict):
            self.charge(len(value))
            return sorted_items(value)
        if isinstance(value, Channel):
            return _Numbered(value.range)
        if isinstance(value, int) and not isinstance(value, bool):
            if len(pipeline.variables) > 1:
                raise TemplateError("range over a number has one variable")
            return _Numbered(range(max(value, 0)))
        raise TemplateError(f"range can't iterate over a value of type {type_name(value)}")

    def _set_loop_variables(self, pipeline: Pipeline, key: Value, element: Value) -> None:
        names = pipeline.variables
        if not names:
            return
        values = (key, element) if len(names) > 1 else (element,)
        if pipeline.is_assignment:
            for name, value in zip(names, values, strict=True):
                self._assign(name, value)
            return
        # They were pushed by the pipeline.
        base = len(self._variables) - len(names)
        for at, (name, value) in enumerate(zip(names, values, strict=True)):
            self._variables[base + at] = (name, value)

    def _assign(self, name: str, value: Value) -> None:
        for at in range(len(self._variables) - 1, -1, -1):
            if self._variables[at][0] == name:
                self._variables[at] = (name, value)
                return
        raise TemplateError(f"undefined variable {name[:40]}")

    # ---- values ----

    def _pipeline(self, node: Pipeline) -> Value:
        value: Value = _NONE
        for command in node.commands:
            self.charge(1)
            try:
                value = self._command(command, value)
            except TemplateError as fault:
                if fault.at < 0:
                    fault.at = command.at
                raise
            if value is None:
                # What an interface holds is taken out; nothing was in it.
                value = UNDEFINED
        for name in node.variables:
            if node.is_assignment:
                self._assign(name, value)
            else:
                self._variables.append((name, value))
        return value

    def _command(self, command: PipelineCommand, final: Value) -> Value:
        first = command.words[0]
        if isinstance(first, FunctionName):
            return self._function(first, command.words[1:], final)
        if isinstance(first, FieldPath):
            return self._fields(self._dot, first.names, command.words[1:], final)
        if isinstance(first, FieldChain):
            source = self._operand(first.source)
            return self._fields(source, first.names, command.words[1:], final)
        if isinstance(first, VariablePath) and first.names:
            source = self._variable(first.name)
            return self._fields(source, first.names, command.words[1:], final)
        if len(command.words) > 1 or final is not _NONE:
            raise TemplateError(
                "can't give an argument to a value that is not a function", first.at
            )
        if isinstance(first, Nil):
            raise TemplateError("nil is not a command", first.at)
        return self._operand(first)

    def _operand(self, word: WordNode) -> Value:
        """Evaluate a word that has no arguments."""
        self.charge(1)
        if isinstance(word, Constant):
            return word.value
        if isinstance(word, Dot):
            return self._dot
        if isinstance(word, Pipeline):
            return self._pipeline(word)
        if isinstance(word, VariablePath):
            value = self._variable(word.name)
            return self._fields(value, word.names, (), _NONE) if word.names else value
        if isinstance(word, FieldPath):
            return self._fields(self._dot, word.names, (), _NONE)
        if isinstance(word, FieldChain):
            return self._fields(self._operand(word.source), word.names, (), _NONE)
        if isinstance(word, FunctionName):
            return self._function(word, (), _NONE)
        raise TemplateError("nil has no fields", word.at)

    def _variable(self, name: str) -> Value:
        for known, value in reversed(self._variables):
            if known == name:
                return value
        raise TemplateError(f"undefined variable {name[:40]}")

    def _fields(
        self, value: Value, names: tuple[str, ...], words: tuple[WordNode, ...], final: Value
    ) -> Value:
        for name in names[:-1]:
            value = self._field(value, name, (), _NONE)
        return self._field(value, names[-1], words, final)

    def _field(self, value: Value, name: str, words: tuple[WordNode, ...], final: Value) -> Value:
        self.charge(1)
        if value is UNDEFINED:
            if self._is_missing_key_error:
                raise TemplateError(f"no data; there is no entry for key {name[:40]!r}")
            return UNDEFINED
        if value is None:
            raise TemplateError(f"nil pointer evaluating interface {{}}.{name[:40]}")
        if isinstance(value, GoObject | ObjectMap) and name in value.methods:
            return self._invoke(value.methods[name], words, final)
        if words or final is not _NONE:
            raise TemplateError(f"{name[:40]} has arguments but is not a method")
        if isinstance(value, GoObject) and name in value.fields:
            return value.fields[name]
        if isinstance(value, dict):
            if name in value:
                return value[name]
            if self._is_missing_key_error:
                raise TemplateError(f"map has no entry for key {name[:40]!r}")
            return zero_of(value)
        raise TemplateError(f"can't evaluate field {name[:40]} in type {type_name(value)}")

    # ---- calls ----

    def _function(self, node: FunctionName, words: tuple[WordNode, ...], final: Value) -> Value:
        function = FUNCTIONS.get(node.name)
        if function is None:
            raise TemplateError(f"function {node.name[:40]!r} is not defined", node.at)
        if node.name in {"and", "or"}:
            return self._early(function, words, final)
        return self._invoke(function, words, final)

    def _early(
        self, function: TemplateFunction, words: tuple[WordNode, ...], final: Value
    ) -> Value:
        """Evaluate `and` and `or`: the first argument that decides ends it."""
        function.check_count(len(words) + (final is not _NONE))
        value: Value = UNDEFINED
        for word in words:
            value = self._argument(word, "any")
            if is_true(value) is (function.name == "or"):
                return value
        return value if final is _NONE else final

    def _invoke(
        self, function: TemplateFunction, words: tuple[WordNode, ...], final: Value
    ) -> Value:
        """Evaluate the arguments and call."""
        function.check_count(len(words) + (final is not _NONE))
        arguments = [self._argument(word, function.kind_at(at)) for at, word in enumerate(words)]
        if final is not _NONE:
            arguments.append(checked(final, function.kind_at(len(words))))
        self.charge(1)
        for argument in arguments:
            if isinstance(argument, str) or not function.is_light:
                self.charge_size(argument)
        value = function.call(self, arguments)
        if isinstance(value, str):
            self.charge_size(value)
        elif isinstance(value, list | dict) and not function.is_light:
            self.charge(len(value))
        return value

    def _argument(self, word: WordNode, kind: str) -> Value:
        try:
            if isinstance(word, Constant):
                self.charge(1)
                return constant_for(word.value, kind, word.source)
            if isinstance(word, Nil):
                return checked(None, kind)
            return checked(self._operand(word), kind)
        except TemplateError as fault:
            if fault.at < 0:
                fault.at = word.at
            raise

    _WALKERS: Final[dict[type[Node], Callable[[Any, Any], LoopExit | None]]] = {
        Text: _text,
        PipelineAction: _action,
        LoopExit: _exit,
        TemplateCall: _template,
        Branch: _branch,
        Range: _range,
    }


class _Numbered:
    """Numbers or elements with their indices, made while they are ranged over."""

    def __init__(self, numbers: range | list[Value]) -> None:
        self._numbers = numbers

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def __iter__(self) -> Any:
        return iter(enumerate(self._numbers))
