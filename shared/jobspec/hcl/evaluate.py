"""Expressions to values. Pure: what an expression may ask for is in the `World` it is given.

Decides what each expression is worth, in HCL's way. A name that the world does not know stays text, `${name}`, because
only the node that runs the task can answer it (Nomad's runtime interpolation). Every step is counted against a budget,
and every use of a list or object by its size, so that the work a text asks for is bounded whatever it holds.
"""

from collections.abc import Callable, Mapping

from shared.jobspec.hcl import functions
from shared.jobspec.hcl.errors import HclFault, TooMuch
from shared.jobspec.hcl.registry import LazyFunction
from shared.jobspec.hcl.tree import (
    Binary,
    Call,
    Conditional,
    For,
    GetAttr,
    Index,
    ListOf,
    Literal,
    Node,
    ObjectOf,
    Splat,
    Template,
    TemplateFor,
    TemplateIf,
    Traversal,
    Unary,
)
from shared.jobspec.hcl.values import (
    TEXT_MAX,
    Value,
    as_bool,
    as_number,
    as_text,
    as_whole,
    elements,
    equal,
    kind_of,
    shown,
    tidy,
    weigh,
)

#: Steps of one file: 20 times what the largest public job files take; well below a second.
STEPS_MAX = 200_000
#: Elements of one list or object, and rounds of one for.
ELEMENTS_MAX = 20_000

#: A root as `var` or `local`: called with the first step of a traversal.
Root = Callable[[str, int], Value]
Names = Mapping[str, Value]
NO_NAMES: Names = {}


class World:
    """What expressions may ask for, and what is left of their budget."""

    def __init__(
        self,
        roots: Mapping[str, Root] | None = None,
        *,
        read_file: Callable[[str], bytes] | None = None,
        steps: int = STEPS_MAX,
        seed: str = "",
    ) -> None:
        self.roots: dict[str, Root] = dict(roots or {})
        self.read_file = read_file
        self.steps = steps
        self.seed = seed
        self.drawn = 0
        #: texts of references that stay for the node, in the order met.
        self.kept: dict[str, int] = {}

    def charge(self, steps: int, at: int) -> None:
        """Take steps from the budget. Raises TooMuch."""
        self.steps -= steps
        if self.steps < 0:
            raise TooMuch("evaluation takes too many steps", at)

    def work(self, steps: int) -> None:
        """Take steps from the budget, where the caller has no place. Raises TooMuch."""
        self.charge(steps, -1)

    def value(self, node: Node, names: Names = NO_NAMES) -> Value:
        """Work out an expression. Raises HclFault with the place of what is wrong."""
        self.charge(1, node.at)
        try:
            return _EVALUATORS[type(node)](self, node, names)
        except HclFault as fault:
            if fault.at < 0:
                fault.at = node.at
            raise
        except RecursionError:
            raise HclFault("nested too deep", node.at) from None


def _literal(_world: World, node: Literal, _names: Names) -> Value:
    return node.value


def _traversal(world: World, node: Traversal, names: Names) -> Value:
    steps = node.steps
    if node.root in names:
        found = names[node.root]
    elif node.root in world.roots:
        if not steps or not isinstance(steps[0], str):
            raise HclFault(f"{node.root} is no value; one of it is, as in {node.root}.name")
        found = world.roots[node.root](steps[0], node.at)
        steps = steps[1:]
    else:
        world.kept.setdefault(node.text, node.at)
        return "${" + node.text + "}"
    for step in steps:
        found = taken(found, step)
    if type(found) in {list, dict, str}:
        world.charge(weigh(found, world.steps), node.at)
    return found


def taken(source: Value, key: Value) -> Value:
    """Take an element. Raises HclFault when there is none."""
    if isinstance(source, dict):
        name = as_text(key)
        if name not in source:
            known = ", ".join(sorted(source)[:8]) or "nothing"
            raise HclFault(f"no element {shown(name)}; there is {known}")
        return source[name]
    if isinstance(source, list):
        at = as_whole(key)
        if not 0 <= at < len(source):
            raise HclFault(f"no element {at} in a list of {len(source)}")
        return source[at]
    raise HclFault(f"{kind_of(source)} has no elements, asked for {shown(key)}")


def _attribute(world: World, node: GetAttr, names: Names) -> Value:
    return taken(world.value(node.source, names), node.name)


def _index(world: World, node: Index, names: Names) -> Value:
    return taken(world.value(node.source, names), world.value(node.key, names))


def _splat(world: World, node: Splat, names: Names) -> Value:
    source = world.value(node.source, names)
    if source is None:
        return []
    keys = [one if isinstance(one, str) else world.value(one, names) for one in node.steps]
    found = []
    for item in source if isinstance(source, list) else [source]:
        world.charge(1 + len(keys), node.at)
        for key in keys:
            item = taken(item, key)  # noqa: PLW2901 - walks down
        found.append(item)
    return found


def _call(world: World, node: Call, names: Names) -> Value:
    function = functions.find(node.name)
    if isinstance(function, LazyFunction):
        return function.run(world, node.arguments, names)
    arguments = [world.value(one, names) for one in node.arguments]
    if node.is_expanded:
        last = arguments.pop()
        if not isinstance(last, list):
            raise HclFault(f"... needs a list, was {kind_of(last)}")
        arguments += last
    found = function.call(world, arguments)
    if isinstance(found, str) and len(found) > TEXT_MAX:
        raise TooMuch(f"{node.name}() makes a text of more than {TEXT_MAX} characters", node.at)
    world.charge(weigh(found, world.steps), node.at)
    return found


def _is_known(world: World, node: Node, names: Names) -> None:
    """Raise where a decision hangs on what only the node knows."""
    if isinstance(node, Template) and node.is_bare:
        node = node.parts[0]
    if isinstance(node, Traversal) and node.root not in names and node.root not in world.roots:
        raise HclFault(f"{node.text} is known only where the task runs", node.at)


def _unary(world: World, node: Unary, names: Names) -> Value:
    _is_known(world, node.operand, names)
    value = world.value(node.operand, names)
    return tidy(-as_number(value)) if node.operator == "-" else not as_bool(value)


def _binary(world: World, node: Binary, names: Names) -> Value:
    # A chain leans left as deep as it is long: gone down in a loop, not by recursion.
    chain = [node]
    while isinstance(chain[-1].left, Binary):
        chain.append(chain[-1].left)
    first = chain[-1].left
    _is_known(world, first, names)
    left = world.value(first, names)
    for one in reversed(chain):
        world.charge(1, one.at)
        if one.operator in {"&&", "||"}:
            left = as_bool(left)
            if left is (one.operator == "||"):
                continue
        _is_known(world, one.right, names)
        left = _operate(one.operator, left, world.value(one.right, names))
    return left


def _operate(operator: str, left: Value, right: Value) -> Value:
    if operator == "==":
        return equal(left, right)
    if operator == "!=":
        return not equal(left, right)
    if operator in {"&&", "||"}:
        return as_bool(right)
    a, b = as_number(left), as_number(right)
    if operator in {"<", ">", "<=", ">="}:
        return {"<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b}[operator]
    return arithmetic(operator, a, b)


def arithmetic(operator: str, a: float, b: float) -> Value:
    """Work out one of + - * / %. Raises HclFault."""
    try:
        if operator == "+":
            return tidy(a + b)
        if operator == "-":
            return tidy(a - b)
        if operator == "*":
            return tidy(a * b)
        if not b:
            raise HclFault("division by zero")
        if operator == "%":
            whole = abs(a) % abs(b)
            return tidy(-whole if a < 0 else whole)
        if isinstance(a, int) and isinstance(b, int) and not a % b:
            return a // b
        return tidy(a / b)
    except OverflowError:
        raise HclFault("number is out of range") from None


def _conditional(world: World, node: Conditional, names: Names) -> Value:
    _is_known(world, node.test, names)
    return world.value(node.yes if as_bool(world.value(node.test, names)) else node.no, names)


def _list(world: World, node: ListOf, names: Names) -> Value:
    return [world.value(item, names) for item in node.items]


def _object(world: World, node: ObjectOf, names: Names) -> Value:
    found: dict[str, Value] = {}
    for key, value in node.items:
        found[_key(world, key, names)] = world.value(value, names)
    return found


def _key(world: World, node: Node, names: Names) -> str:
    # `{ a.b = 1 }` is no key; `{ (var.a) = 1 }` and `{ "a" = 1 }` are.
    return as_text(world.value(node, names))


def _for(world: World, node: For, names: Names) -> Value:
    pairs = elements(world.value(node.source, names))
    if len(pairs) > ELEMENTS_MAX:
        raise TooMuch(f"for over {len(pairs)} elements", node.at)
    listed: list[Value] = []
    keyed: dict[str, Value] = {}
    inner = dict(names)
    for key, value in pairs:
        if node.key:
            inner[node.key] = key
        inner[node.value] = value
        if node.test is not None and not as_bool(world.value(node.test, inner)):
            continue
        if node.result_key is None:
            listed.append(world.value(node.result, inner))
            continue
        name = as_text(world.value(node.result_key, inner))
        result = world.value(node.result, inner)
        if node.is_grouped:
            keyed.setdefault(name, []).append(result)
        elif name in keyed:
            raise HclFault(f"key {shown(name)} comes twice; ... after the value collects them")
        else:
            keyed[name] = result
    return listed if node.result_key is None else keyed


def _template(world: World, node: Template, names: Names) -> Value:
    if node.is_bare:
        return world.value(node.parts[0], names)
    parts = [_part(world, part, names) for part in node.parts]
    size = sum(map(len, parts))
    if size > TEXT_MAX:
        raise TooMuch(f"text of more than {TEXT_MAX} characters", node.at)
    world.charge(size >> 6, node.at)
    return "".join(parts)


def _part(world: World, node: Node, names: Names) -> str:
    value = world.value(node, names)
    try:
        return as_text(value)
    except HclFault:
        raise HclFault(f"{kind_of(value)} cannot stand in a text", node.at) from None


def _template_if(world: World, node: TemplateIf, names: Names) -> Value:
    _is_known(world, node.test, names)
    chosen = node.yes if as_bool(world.value(node.test, names)) else node.no
    return _template(world, chosen, names)


def _template_for(world: World, node: TemplateFor, names: Names) -> Value:
    inner = dict(names)
    parts: list[str] = []
    size = 0
    for key, value in elements(world.value(node.source, names)):
        world.charge(1, node.at)
        if node.key:
            inner[node.key] = key
        inner[node.value] = value
        parts.append(_template(world, node.body, inner))
        size += len(parts[-1])
        if size > TEXT_MAX:
            raise TooMuch(f"text of more than {TEXT_MAX} characters", node.at)
    return "".join(parts)


_EVALUATORS: dict[type[Node], Callable[..., Value]] = {
    Literal: _literal,
    Template: _template,
    TemplateIf: _template_if,
    TemplateFor: _template_for,
    Traversal: _traversal,
    GetAttr: _attribute,
    Index: _index,
    Splat: _splat,
    Call: _call,
    Unary: _unary,
    Binary: _binary,
    Conditional: _conditional,
    ListOf: _list,
    ObjectOf: _object,
    For: _for,
}
