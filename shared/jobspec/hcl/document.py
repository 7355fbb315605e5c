"""Evaluates the variables, locals and blocks of a file to plain values.

A variable takes its value from its default, the environment, files and the command line, each overriding the one
before. Locals are evaluated on first use; a cycle is an error that names them. Expands `dynamic` blocks. Accepts any
block, not only jobs. Errors are collected, each with its position.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import msgspec

from shared.errors import CommandInvalid
from shared.jobspec.files.json_lines import line_numbers
from shared.jobspec.hcl.blocks import UNKNOWN_VALUE, Diagnostic, ResolvedBlock
from shared.jobspec.hcl.errors import DIAGNOSTICS_MAX, HclError, HclLimitExceeded, did_you_mean
from shared.jobspec.hcl.evaluate import EMPTY_SCOPE, STEPS_MAX, ExpressionContext, Scope
from shared.jobspec.hcl.syntax.parser import parse_body, parse_expression
from shared.jobspec.hcl.syntax.tree import Attribute, Block, Body, Expression, Traversal
from shared.jobspec.hcl.type_constraints import ANY, TypeConstraint, parse_type
from shared.jobspec.hcl.values import (
    Value,
    as_bool,
    as_list,
    as_text,
    describe_value,
    iteration_pairs,
)
from shared.jobspec.strict_json import read_object

#: Environment variables that set variables, the later over the earlier.
ENV_PREFIXES = ("NOMAD_VAR_", "CARAVAN_VAR_")


#: Errors that get a `did you mean`.
HINTS_MAX = 20


class VariableInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Values that the caller sets. Files are (name, text) in order."""

    variables: Mapping[str, str] = {}
    var_files: Sequence[tuple[str, str]] = ()
    env: Mapping[str, str] = {}
    read_file: Callable[[str], bytes] | None = None
    steps: int = STEPS_MAX
    #: seed of uuidv4(); empty: the function is refused.
    seed: str = ""


class Document:
    """The evaluation of one file. `blocks` are the top-level blocks that are neither variables nor locals."""

    def __init__(self, text: str, given: VariableInputs) -> None:
        self._text = text
        self._lines: list[int] = []
        self._given = given
        self.faults: list[Diagnostic] = []
        self.world = ExpressionContext(
            {"var": self._variable, "local": self._local},
            read_file=given.read_file,
            steps=given.steps,
            seed=given.seed,
        )
        self._plain = ExpressionContext({}, steps=given.steps)
        self._variables: dict[str, Value] = {}
        self._declared: dict[str, TypeConstraint] = {}
        self._broken: set[str] = set()
        self._locals: dict[str, Attribute] = {}
        self._known: dict[str, Value] = {}
        self._broken_locals: set[str] = set()
        self._resolving_locals: list[str] = []
        self._checks: list[Block] = []
        #: what the environment set, and no file of variables after it.
        self.env_values: dict[str, str] = {}

    def blocks(self) -> tuple[ResolvedBlock, ...]:
        """Evaluate the file. Errors are in `faults`."""
        try:
            return self._top(parse_body(self._text))
        except HclError as fault:
            if len(self.faults) < DIAGNOSTICS_MAX:
                self.note(fault)
            return ()

    def note(self, fault: HclError, at: int = 0) -> None:
        """Record an error. Raises HclLimitExceeded once there are too many."""
        place = fault.at if fault.at >= 0 else at
        self._add(fault.message, line=self.line_of(place))

    def line_of(self, at: int) -> int:
        """Count the line of a place."""
        if not self._lines:
            self._lines = [found.start() for found in re.finditer("\n", self._text)] or [
                len(self._text)
            ]
        return bisect_right(self._lines, at - 1) + 1

    def _top(self, body: Body) -> tuple[ResolvedBlock, ...]:
        for attribute in body.attributes:
            self.note(HclError(f"{attribute.name[:40]!r} is set outside a block", attribute.at))
        rest: list[Block] = []
        for block in body.blocks:
            if block.name == "variable":
                self._declare(block)
            elif block.name == "variables":
                self._declare_short(block)
            elif block.name == "locals":
                self._add_locals(block)
            else:
                rest.append(block)
        self._take_given()
        for name in self._locals:
            try:
                self._local(name, self._locals[name].at)
            except HclLimitExceeded:
                raise
            except HclError as fault:
                self._note_unless_reported(fault, self._locals[name].at)
        return tuple([made for block in rest for made in self._expanded(block, EMPTY_SCOPE) or ()])

    # ---- variables ----

    def _declare(self, block: Block) -> None:
        if len(block.labels) != 1:
            self.note(
                HclError('a variable needs exactly one name, as in variable "name" { }', block.at)
            )
            return
        name = block.labels[0]
        if name in self._declared:
            self.note(HclError(f"variable {name[:40]!r} is declared twice", block.at))
            return
        parts = {one.name: one for one in block.body.attributes}
        self._declared[name] = ANY
        try:
            if "type" in parts:
                self._declared[name] = parse_type(parts["type"].value)
            if "default" in parts:
                value = self._plain.value(parts["default"].value)
                self._variables[name] = self._fit(name, value)
        except HclError as fault:
            self._broken.add(name)
            self.note(fault, block.at)
        self._checks.append(block)

    def _declare_short(self, block: Block) -> None:
        """Take `variables { name = default }`."""
        for one in block.body.attributes:
            self._declared[one.name] = ANY
            try:
                self._variables[one.name] = self._plain.value(one.value)
            except HclError as fault:
                self._broken.add(one.name)
                self.note(fault, one.at)

    def _fit(self, name: str, value: Value) -> Value:
        try:
            return self._declared[name].convert(value)
        except HclError as fault:
            raise HclError(f"variable {name[:40]!r}: {fault.message}", fault.at) from None

    def _take_given(self) -> None:
        """Set variables from outside, then check that each has a valid value."""
        for prefix in ENV_PREFIXES:
            for key in sorted(self._given.env):
                name = key.removeprefix(prefix)
                if name != key and name in self._declared:
                    self.env_values[name] = self._given.env[key]
                    self._set(name, self._given.env[key], key)
        for file, text in self._given.var_files:
            self._read_var_file(file, text)
        for name, text in self._given.variables.items():
            if name in self._declared:
                self._set(name, text, f"-var {name[:40]}")
            else:
                self._add(f"-var {name[:40]}: {self._undeclared(name)}")
        for block in self._checks:
            self._check(block)

    def _set(self, name: str, text: str, origin: str) -> None:
        """Set a variable from a text outside any file."""
        declared = self._declared[name]
        try:
            value = (
                text if declared.is_text else ExpressionContext({}).value(parse_expression(text))
            )
            self._variables[name] = self._fit(name, value)
            self._broken.discard(name)
        except HclError as fault:
            self._broken.add(name)
            self._add(f"{origin}: {fault.message}")

    def _read_var_file(self, file: str, text: str) -> None:
        if file.endswith(".json") or text.lstrip().startswith("{"):
            self._read_json_var_file(file, text)
            return
        try:
            body = parse_body(text)
        except HclError as fault:
            self._add(fault.message, file, text.count("\n", 0, max(fault.at, 0)) + 1)
            return
        for block in body.blocks:
            line = text.count("\n", 0, block.at) + 1
            self._add(
                f"a variables file must not contain blocks, found {block.name[:40]!r}", file, line
            )
        for one in body.attributes:
            line = text.count("\n", 0, one.at) + 1
            if one.name not in self._declared:
                self._add(self._undeclared(one.name), file, line)
                continue
            try:
                self._variables[one.name] = self._fit(
                    one.name, ExpressionContext({}).value(one.value)
                )
                self._broken.discard(one.name)
                self.env_values.pop(one.name, None)
            except HclError as fault:
                self._broken.add(one.name)
                self._add(fault.message, file, line)

    def _read_json_var_file(self, file: str, text: str) -> None:
        """Set the variables of an object; a text is taken as it is, without expressions."""
        try:
            found, _ = read_object(text.encode())
        except CommandInvalid as err:
            lost = re.search(r"line (\d+) column", err.message)
            where = f"{err.path}: " if err.path else ""
            self._add(f"{where}{err.message}", file, int(lost[1]) if lost else 0)
            return
        lines = line_numbers(text)
        for name, value in found.items():
            if name not in self._declared:
                self._add(self._undeclared(name), file, lines.get(name, 0))
                continue
            try:
                self._variables[name] = self._fit(name, value)
                self._broken.discard(name)
                self.env_values.pop(name, None)
            except HclError as fault:
                self._broken.add(name)
                self._add(fault.message, file, lines.get(name, 0))

    def _undeclared(self, name: str) -> str:
        text = f"variable {name[:40]!r} is not declared in the job file"
        return text + self._hint(name, self._declared)

    def _hint(self, name: str, known: Mapping[str, object]) -> str:
        # The search for near names is slow: only the first errors get a hint.
        return did_you_mean(name, known) if len(self.faults) < HINTS_MAX else ""

    def _add(self, message: str, file: str = "", line: int = 0) -> None:
        if len(self.faults) >= DIAGNOSTICS_MAX:
            raise HclLimitExceeded(f"more than {DIAGNOSTICS_MAX} errors")
        self.faults.append(Diagnostic(message=message, file=file, line=line))

    def _check(self, block: Block) -> None:
        """Check that a declared variable has a value that satisfies its validation blocks."""
        name = block.labels[0]
        if name in self._broken:
            return
        if name not in self._variables:
            self._broken.add(name)
            text = f"variable {name[:40]!r} has no value: set it with -var {name[:40]}=…"
            self.note(HclError(text, block.at))
            return
        for rule in block.body.blocks:
            parts = {one.name: one.value for one in rule.body.attributes}
            if rule.name != "validation" or "condition" not in parts:
                continue
            try:
                if not as_bool(self.world.value(parts["condition"])):
                    message = parts.get("error_message")
                    text = (
                        as_text(self.world.value(message)) if message else "the value is not valid"
                    )
                    value = describe_value(self._variables[name])
                    self.note(HclError(f"variable {name[:40]!r}, was {value}: {text}", block.at))
            except HclError as fault:
                self.note(fault, rule.at)

    def _variable(self, name: str, at: int) -> Value:
        if name in self._variables and name not in self._broken:
            return self._variables[name]
        if name in self._broken:
            raise _ReportedError(f"variable {name[:40]!r} has an invalid value", at)
        raise HclError(self._undeclared(name), at)

    # ---- locals ----

    def _add_locals(self, block: Block) -> None:
        for one in block.body.attributes:
            if one.name in self._locals:
                self.note(HclError(f"local {one.name[:40]!r} is set twice", one.at))
            self._locals[one.name] = one

    def _local(self, name: str, at: int) -> Value:
        if name in self._known:
            return self._known[name]
        if name in self._broken_locals:
            raise _ReportedError(f"local {name[:40]!r} has an invalid value", at)
        found = self._locals.get(name)
        if found is None:
            raise HclError(f"unknown local {name[:40]!r}{self._hint(name, self._locals)}", at)
        if name in self._resolving_locals:
            ring = [*self._resolving_locals[self._resolving_locals.index(name) :], name]
            text = " → ".join(f"local.{one[:40]}" for one in ring[:12])
            raise HclError(f"locals depend on each other in a cycle: {text}", found.at)
        self._resolving_locals.append(name)
        try:
            self._known[name] = self.world.value(found.value)
        except HclError:
            self._broken_locals.add(name)
            raise
        finally:
            self._resolving_locals.pop()
        return self._known[name]

    def _note_unless_reported(self, fault: HclError, at: int) -> None:
        """Record an error, unless it follows from one that is already reported."""
        if not isinstance(fault, _ReportedError):
            self.note(fault, at)

    # ---- blocks ----

    def _expanded(self, block: Block, names: Scope) -> list[ResolvedBlock] | None:
        """Evaluate a block; a dynamic one becomes one block an element, None where these are unknown."""
        if block.name == "dynamic":
            return self._dynamic(block, names)
        attributes: dict[str, tuple[Value, int]] = {}
        for one in block.body.attributes:
            found = self._evaluate_attribute(one.value, names, one.at)
            attributes[one.name] = (found, self.line_of(one.at))
        inner: list[ResolvedBlock] = []
        for child in block.body.blocks:
            made = self._expanded(child, names)
            if made is None:
                attributes[child.labels[0] if child.labels else child.name] = (UNKNOWN_VALUE, 0)
            else:
                inner += made
        line = self.line_of(block.at)
        return [ResolvedBlock(block.name, block.labels, attributes, tuple(inner), line)]

    def _evaluate_attribute(self, node: Expression, names: Scope, at: int) -> Value:
        try:
            return self.world.value(node, names)
        except HclLimitExceeded:
            raise
        except HclError as fault:
            self._note_unless_reported(fault, at)
            return UNKNOWN_VALUE

    def _dynamic(self, block: Block, names: Scope) -> list[ResolvedBlock] | None:
        parts = {one.name: one.value for one in block.body.attributes}
        contents = [one for one in block.body.blocks if one.name == "content"]
        if len(block.labels) != 1 or len(contents) != 1 or "for_each" not in parts:
            text = 'a dynamic block has the form dynamic "name" { for_each = …, content { … } }'
            self.note(HclError(text, block.at))
            return None
        name = block.labels[0]
        made: list[ResolvedBlock] = []
        try:
            iterator = _iterator(parts.get("iterator"), name)
            for key, value in iteration_pairs(self.world.value(parts["for_each"], names)):
                inner = {**names, iterator: {"key": key, "value": value}}
                labels = (
                    as_list(self.world.value(parts["labels"], inner)) if "labels" in parts else []
                )
                content = Block(name, tuple(map(as_text, labels)), contents[0].body, block.at)
                made += self._expanded(content, inner) or []
        except HclLimitExceeded:
            raise
        except HclError as fault:
            self._note_unless_reported(fault, block.at)
            return None
        return made


class _ReportedError(HclError):
    """An error that follows from one that is already reported."""


def _iterator(node: Expression | None, default: str) -> str:
    if node is None:
        return default
    if isinstance(node, Traversal) and not node.steps:
        return node.root
    raise HclError("iterator must be a plain name", node.at)
