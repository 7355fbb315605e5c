"""A file's variables, locals and blocks, worked out: what is left holds values alone.

Decides which value a variable has (its default, the environment, files, the command line, each over the one before),
the order of locals (none: each is worked out when first asked for; one that asks for itself is named), and what a
`dynamic` block becomes. Knows no job: any block passes. Faults are collected, each with its place.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import msgspec

from shared.jobspec.hcl.conversions import ANY, Type, type_of
from shared.jobspec.hcl.errors import FAULTS_MAX, HclFault, TooMuch, hint
from shared.jobspec.hcl.evaluate import NO_NAMES, STEPS_MAX, Names, World
from shared.jobspec.hcl.parsing import parse_body, parse_expression
from shared.jobspec.hcl.tree import Attribute, Block, Body, Node, Traversal
from shared.jobspec.hcl.values import Value, as_bool, as_list, as_text, elements, shown

#: Environment variables that set variables, the later over the earlier.
ENV_PREFIXES = ("NOMAD_VAR_", "CARAVAN_VAR_")


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a file. `line` counts from 1, 0: no line."""

    message: str
    line: int = 0
    file: str = ""
    path: str = ""


#: Faults that come with a guess at what was meant.
HINTS_MAX = 20

#: Stands for a value that could not be worked out; its fault is told.
BROKEN: Value = object()


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller sets from outside. Files are (name, text) in order."""

    variables: Mapping[str, str] = {}
    var_files: Sequence[tuple[str, str]] = ()
    env: Mapping[str, str] = {}
    read_file: Callable[[str], bytes] | None = None
    steps: int = STEPS_MAX
    #: what uuidv4() draws from; empty: it is refused.
    seed: str = ""


class Made(msgspec.Struct, frozen=True):
    """A block whose attributes are values: name -> (value, line)."""

    name: str
    labels: tuple[str, ...]
    attributes: dict[str, tuple[Value, int]]
    blocks: tuple["Made", ...]
    line: int


class Document:
    """One file being worked out. `blocks` are the top-level blocks that are neither variables nor locals."""

    def __init__(self, text: str, given: Given) -> None:
        self._text = text
        self._lines: list[int] = []
        self._given = given
        self.faults: list[Fault] = []
        self.world = World(
            {"var": self._variable, "local": self._local},
            read_file=given.read_file,
            steps=given.steps,
            seed=given.seed,
        )
        self._plain = World({}, steps=given.steps)
        self._variables: dict[str, Value] = {}
        self._declared: dict[str, Type] = {}
        self._broken: set[str] = set()
        self._locals: dict[str, Attribute] = {}
        self._known: dict[str, Value] = {}
        self._broken_locals: set[str] = set()
        self._asking: list[str] = []
        self._checks: list[Block] = []

    def blocks(self) -> tuple[Made, ...]:
        """Work the file out. Faults stand in `faults`."""
        try:
            return self._top(parse_body(self._text))
        except HclFault as fault:
            if len(self.faults) < FAULTS_MAX:
                self.note(fault)
            return ()

    def note(self, fault: HclFault, at: int = 0) -> None:
        """Keep a fault. Raises TooMuch once there are too many."""
        place = fault.at if fault.at >= 0 else at
        self._add(fault.message, line=self.line_of(place))

    def line_of(self, at: int) -> int:
        """Count the line of a place."""
        if not self._lines:
            self._lines = [found.start() for found in re.finditer("\n", self._text)] or [
                len(self._text)
            ]
        return bisect_right(self._lines, at - 1) + 1

    def _top(self, body: Body) -> tuple[Made, ...]:
        for attribute in body.attributes:
            self.note(HclFault(f"{attribute.name[:40]!r} is set outside a block", attribute.at))
        rest: list[Block] = []
        for block in body.blocks:
            if block.name == "variable":
                self._declare(block)
            elif block.name == "variables":
                self._declare_plainly(block)
            elif block.name == "locals":
                self._add_locals(block)
            else:
                rest.append(block)
        self._take_given()
        for name in self._locals:
            try:
                self._local(name, self._locals[name].at)
            except TooMuch:
                raise
            except HclFault as fault:
                self._note_once(fault, self._locals[name].at)
        return tuple([made for block in rest for made in self._expanded(block, NO_NAMES) or ()])

    # ---- variables ----

    def _declare(self, block: Block) -> None:
        if len(block.labels) != 1:
            self.note(HclFault('a variable needs one name, as in variable "name" { }', block.at))
            return
        name = block.labels[0]
        if name in self._declared:
            self.note(HclFault(f"variable {name[:40]!r} is declared twice", block.at))
            return
        parts = {one.name: one for one in block.body.attributes}
        self._declared[name] = ANY
        try:
            if "type" in parts:
                self._declared[name] = type_of(parts["type"].value)
            if "default" in parts:
                value = self._plain.value(parts["default"].value)
                self._variables[name] = self._fit(name, value)
        except HclFault as fault:
            self._broken.add(name)
            self.note(fault, block.at)
        self._checks.append(block)

    def _declare_plainly(self, block: Block) -> None:
        """Take `variables { name = default }`."""
        for one in block.body.attributes:
            self._declared[one.name] = ANY
            try:
                self._variables[one.name] = self._plain.value(one.value)
            except HclFault as fault:
                self._broken.add(one.name)
                self.note(fault, one.at)

    def _fit(self, name: str, value: Value) -> Value:
        try:
            return self._declared[name].convert(value)
        except HclFault as fault:
            raise HclFault(f"variable {name[:40]!r}: {fault.message}", fault.at) from None

    def _take_given(self) -> None:
        """Set variables from outside, then see that each has a value that holds."""
        for prefix in ENV_PREFIXES:
            for key in sorted(self._given.env):
                name = key.removeprefix(prefix)
                if name != key and name in self._declared:
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
            value = text if declared.is_text else World({}).value(parse_expression(text))
            self._variables[name] = self._fit(name, value)
            self._broken.discard(name)
        except HclFault as fault:
            self._broken.add(name)
            self._add(f"{origin}: {fault.message}")

    def _read_var_file(self, file: str, text: str) -> None:
        try:
            body = parse_body(text)
        except HclFault as fault:
            self._add(fault.message, file, text.count("\n", 0, max(fault.at, 0)) + 1)
            return
        for block in body.blocks:
            line = text.count("\n", 0, block.at) + 1
            self._add(f"a file of variables holds no blocks, found {block.name[:40]!r}", file, line)
        for one in body.attributes:
            line = text.count("\n", 0, one.at) + 1
            if one.name not in self._declared:
                self._add(self._undeclared(one.name), file, line)
                continue
            try:
                self._variables[one.name] = self._fit(one.name, World({}).value(one.value))
                self._broken.discard(one.name)
            except HclFault as fault:
                self._broken.add(one.name)
                self._add(fault.message, file, line)

    def _undeclared(self, name: str) -> str:
        text = f"variable {name[:40]!r} is not declared in the job file"
        return text + self._hint(name, self._declared)

    def _hint(self, name: str, known: Mapping[str, object]) -> str:
        # Looking for near names costs: who has many faults gets no more hints.
        return hint(name, known) if len(self.faults) < HINTS_MAX else ""

    def _add(self, message: str, file: str = "", line: int = 0) -> None:
        if len(self.faults) >= FAULTS_MAX:
            raise TooMuch(f"more than {FAULTS_MAX} faults")
        self.faults.append(Fault(message=message, file=file, line=line))

    def _check(self, block: Block) -> None:
        """See that a declared variable has a value, and what its own rules say."""
        name = block.labels[0]
        if name in self._broken:
            return
        if name not in self._variables:
            self._broken.add(name)
            text = f"variable {name[:40]!r} has no value: set it with -var {name[:40]}=…"
            self.note(HclFault(text, block.at))
            return
        for rule in block.body.blocks:
            parts = {one.name: one.value for one in rule.body.attributes}
            if rule.name != "validation" or "condition" not in parts:
                continue
            try:
                if not as_bool(self.world.value(parts["condition"])):
                    told = parts.get("error_message")
                    text = as_text(self.world.value(told)) if told else "the value is not valid"
                    value = shown(self._variables[name])
                    self.note(HclFault(f"variable {name[:40]!r}, was {value}: {text}", block.at))
            except HclFault as fault:
                self.note(fault, rule.at)

    def _variable(self, name: str, at: int) -> Value:
        if name in self._variables and name not in self._broken:
            return self._variables[name]
        if name in self._broken:
            raise _Known(f"variable {name[:40]!r} has no valid value", at)
        raise HclFault(self._undeclared(name), at)

    # ---- locals ----

    def _add_locals(self, block: Block) -> None:
        for one in block.body.attributes:
            if one.name in self._locals:
                self.note(HclFault(f"local {one.name[:40]!r} is set twice", one.at))
            self._locals[one.name] = one

    def _local(self, name: str, at: int) -> Value:
        if name in self._known:
            return self._known[name]
        if name in self._broken_locals:
            raise _Known(f"local {name[:40]!r} has no valid value", at)
        found = self._locals.get(name)
        if found is None:
            raise HclFault(f"there is no local {name[:40]!r}{self._hint(name, self._locals)}", at)
        if name in self._asking:
            ring = [*self._asking[self._asking.index(name) :], name]
            text = " → ".join(f"local.{one[:40]}" for one in ring[:12])
            raise HclFault(f"locals ask for each other in a ring: {text}", found.at)
        self._asking.append(name)
        try:
            self._known[name] = self.world.value(found.value)
        except HclFault:
            self._broken_locals.add(name)
            raise
        finally:
            self._asking.pop()
        return self._known[name]

    def _note_once(self, fault: HclFault, at: int) -> None:
        """Keep a fault, unless it only repeats one that is told where it arose."""
        if not isinstance(fault, _Known):
            self.note(fault, at)

    # ---- blocks ----

    def _expanded(self, block: Block, names: Names) -> list[Made] | None:
        """Work a block out; a dynamic one becomes as many as it has elements, None where that is not known."""
        if block.name == "dynamic":
            return self._dynamic(block, names)
        attributes: dict[str, tuple[Value, int]] = {}
        for one in block.body.attributes:
            found = self._worked_out(one.value, names, one.at)
            attributes[one.name] = (found, self.line_of(one.at))
        inner: list[Made] = []
        for child in block.body.blocks:
            made = self._expanded(child, names)
            if made is None:
                attributes[child.labels[0] if child.labels else child.name] = (BROKEN, 0)
            else:
                inner += made
        line = self.line_of(block.at)
        return [Made(block.name, block.labels, attributes, tuple(inner), line)]

    def _worked_out(self, node: Node, names: Names, at: int) -> Value:
        try:
            return self.world.value(node, names)
        except TooMuch:
            raise
        except HclFault as fault:
            self._note_once(fault, at)
            return BROKEN

    def _dynamic(self, block: Block, names: Names) -> list[Made] | None:
        parts = {one.name: one.value for one in block.body.attributes}
        contents = [one for one in block.body.blocks if one.name == "content"]
        if len(block.labels) != 1 or len(contents) != 1 or "for_each" not in parts:
            text = 'a dynamic block is dynamic "name" { for_each = …, content { … } }'
            self.note(HclFault(text, block.at))
            return None
        name = block.labels[0]
        made: list[Made] = []
        try:
            iterator = _iterator(parts.get("iterator"), name)
            for key, value in elements(self.world.value(parts["for_each"], names)):
                inner = {**names, iterator: {"key": key, "value": value}}
                labels = (
                    as_list(self.world.value(parts["labels"], inner)) if "labels" in parts else []
                )
                content = Block(name, tuple(map(as_text, labels)), contents[0].body, block.at)
                made += self._expanded(content, inner) or []
        except TooMuch:
            raise
        except HclFault as fault:
            self._note_once(fault, block.at)
            return None
        return made


class _Known(HclFault):
    """A fault that follows from one that is told already."""


def _iterator(node: Node | None, default: str) -> str:
    if node is None:
        return default
    if isinstance(node, Traversal) and not node.steps:
        return node.root
    raise HclFault("iterator must be a plain name", node.at)
