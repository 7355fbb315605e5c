"""Evaluates expressions. Pure: an expression can only use the `ExpressionContext` that it is given.

A name that the context does not know stays the text `${name}`: the node of the task resolves it (Nomad's runtime
interpolation). Each step is charged to a budget, and each use of a list or object by its size, so that the work is
bounded for any text.
"""

from collections.abc import Callable, Mapping

from shared.jobspec.hcl.errors import HclError, HclLimitExceeded
from shared.jobspec.hcl.functions import catalog
from shared.jobspec.hcl.functions.registry import LazyFunction
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
    TemplateExpression,
    TemplateFor,
    TemplateIf,
    Traversal,
    Unary,
)
from shared.jobspec.hcl.values import (
    TEXT_MAX,
    Value,
    as_bool,
    as_int,
    as_number,
    as_text,
    describe_value,
    iteration_pairs,
    kind_of,
    normalize_number,
    value_size,
    values_equal,
)

#: Steps of one file: 20 times those of the largest public job files; well below a second.
STEPS_MAX = 200_000
#: Elements of one list or object, and rounds of one for.
ELEMENTS_MAX = 20_000

#: Resolves a root such as `var` or `local`: called with the first step of a traversal.
RootResolver = Callable[[str, int], Value]
Scope = Mapping[str, Value]
EMPTY_SCOPE: Scope = {}


class ExpressionContext:
    """The names, files and remaining budget of an evaluation."""

    def __init__(
        self,
        roots: Mapping[str, RootResolver] | None = None,
        *,
        read_file: Callable[[str], bytes] | None = None,
        steps: int = STEPS_MAX,
        seed: str = "",
    ) -> None:
        self.roots: dict[str, RootResolver] = dict(roots or {})
        self.read_file = read_file
        self.steps = steps
        self.seed = seed
        self.drawn = 0
        #: texts of references that stay for the node, in the order met.
        self.kept: dict[str, int] = {}

    def charge(self, steps: int, at: int) -> None:
        """Take steps from the budget. Raises HclLimitExceeded."""
        self.steps -= steps
        if self.steps < 0:
            raise HclLimitExceeded("evaluation exceeds the step limit", at)

    def work(self, steps: int) -> None:
        """Take steps from the budget, where the caller has no place. Raises HclLimitExceeded."""
        self.charge(steps, -1)

    def value(self, node: Expression, names: Scope = EMPTY_SCOPE) -> Value:
        """Evaluate an expression. Raises HclError with the position."""
        self.charge(1, node.at)
        try:
            return _EVALUATORS[type(node)](self, node, names)
        except HclError as fault:
            if fault.at < 0:
                fault.at = node.at
            raise
        except RecursionError:
            raise HclError("nested too deeply", node.at) from None


def _literal(_world: ExpressionContext, node: Literal, _names: Scope) -> Value:
    return node.value


def _traversal(world: ExpressionContext, node: Traversal, names: Scope) -> Value:
    steps = node.steps
    if node.root in names:
        found = names[node.root]
    elif node.root in world.roots:
        if not steps or not isinstance(steps[0], str):
            raise HclError(
                f"{node.root} is not a value; name one of its elements, as in {node.root}.name"
            )
        found = world.roots[node.root](steps[0], node.at)
        steps = steps[1:]
    else:
        world.kept.setdefault(node.text, node.at)
        return "${" + node.text + "}"
    for step in steps:
        found = take_element(found, step)
    if type(found) in {list, dict, str}:
        world.charge(value_size(found, world.steps), node.at)
    return found


def take_element(source: Value, key: Value) -> Value:
    """Take an element. Raises HclError when there is none."""
    if isinstance(source, dict):
        name = as_text(key)
        if name not in source:
            known = ", ".join(sorted(source)[:8]) or "none"
            raise HclError(f"no element {describe_value(name)}; expected one of {known}")
        return source[name]
    if isinstance(source, list):
        at = as_int(key)
        if not 0 <= at < len(source):
            raise HclError(f"no element {at} in a list of {len(source)}")
        return source[at]
    raise HclError(f"{kind_of(source)} has no elements, found index {describe_value(key)}")


def _attribute(world: ExpressionContext, node: GetAttr, names: Scope) -> Value:
    return take_element(world.value(node.source, names), node.name)


def _index(world: ExpressionContext, node: Index, names: Scope) -> Value:
    return take_element(world.value(node.source, names), world.value(node.key, names))


def _splat(world: ExpressionContext, node: Splat, names: Scope) -> Value:
    source = world.value(node.source, names)
    if source is None:
        return []
    keys = [one if isinstance(one, str) else world.value(one, names) for one in node.steps]
    found = []
    for item in source if isinstance(source, list) else [source]:
        world.charge(1 + len(keys), node.at)
        for key in keys:
            item = take_element(item, key)  # noqa: PLW2901 - walks down
        found.append(item)
    return found


def _call(world: ExpressionContext, node: FunctionCall, names: Scope) -> Value:
    function = catalog.find_function(node.name)
    if isinstance(function, LazyFunction):
        return function.run(world, node.arguments, names)
    arguments = [world.value(one, names) for one in node.arguments]
    if node.is_expanded:
        last = arguments.pop()
        if not isinstance(last, list):
            raise HclError(f"... needs a list, was {kind_of(last)}")
        arguments += last
    found = function.call(world, arguments)
    if isinstance(found, str) and len(found) > TEXT_MAX:
        raise HclLimitExceeded(
            f"{node.name}() returns a string of more than {TEXT_MAX} characters", node.at
        )
    world.charge(value_size(found, world.steps), node.at)
    return found


def _require_known(world: ExpressionContext, node: Expression, names: Scope) -> None:
    """Raise where the value is a reference that only the node can resolve."""
    if isinstance(node, TemplateExpression) and node.is_bare:
        node = node.parts[0]
    if isinstance(node, Traversal) and node.root not in names and node.root not in world.roots:
        raise HclError(f"{node.text} is known only on the node of the task", node.at)


def _unary(world: ExpressionContext, node: Unary, names: Scope) -> Value:
    _require_known(world, node.operand, names)
    value = world.value(node.operand, names)
    return normalize_number(-as_number(value)) if node.operator == "-" else not as_bool(value)


def _binary(world: ExpressionContext, node: Binary, names: Scope) -> Value:
    # A chain of operators nests to the left: a loop instead of recursion.
    chain = [node]
    while isinstance(chain[-1].left, Binary):
        chain.append(chain[-1].left)
    first = chain[-1].left
    _require_known(world, first, names)
    left = world.value(first, names)
    for one in reversed(chain):
        world.charge(1, one.at)
        if one.operator in {"&&", "||"}:
            left = as_bool(left)
            if left is (one.operator == "||"):
                continue
        _require_known(world, one.right, names)
        left = _operate(one.operator, left, world.value(one.right, names))
    return left


def _operate(operator: str, left: Value, right: Value) -> Value:
    if operator == "==":
        return values_equal(left, right)
    if operator == "!=":
        return not values_equal(left, right)
    if operator in {"&&", "||"}:
        return as_bool(right)
    a, b = as_number(left), as_number(right)
    if operator in {"<", ">", "<=", ">="}:
        return {"<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b}[operator]
    return arithmetic(operator, a, b)


def arithmetic(operator: str, a: float, b: float) -> Value:
    """Compute one of + - * / %. Raises HclError."""
    try:
        if operator == "+":
            return normalize_number(a + b)
        if operator == "-":
            return normalize_number(a - b)
        if operator == "*":
            return normalize_number(a * b)
        if not b:
            raise HclError("division by zero")
        if operator == "%":
            whole = abs(a) % abs(b)
            return normalize_number(-whole if a < 0 else whole)
        if isinstance(a, int) and isinstance(b, int) and not a % b:
            return a // b
        return normalize_number(a / b)
    except OverflowError:
        raise HclError("number is out of range") from None


def _conditional(world: ExpressionContext, node: Conditional, names: Scope) -> Value:
    _require_known(world, node.test, names)
    return world.value(node.yes if as_bool(world.value(node.test, names)) else node.no, names)


def _list(world: ExpressionContext, node: ListLiteral, names: Scope) -> Value:
    return [world.value(item, names) for item in node.items]


def _object(world: ExpressionContext, node: ObjectLiteral, names: Scope) -> Value:
    found: dict[str, Value] = {}
    for key, value in node.items:
        found[as_text(world.value(key, names))] = world.value(value, names)
    return found


def _for(world: ExpressionContext, node: ForExpression, names: Scope) -> Value:
    pairs = iteration_pairs(world.value(node.source, names))
    if len(pairs) > ELEMENTS_MAX:
        raise HclLimitExceeded(f"for expression over {len(pairs)} elements", node.at)
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
            raise HclError(
                f"key {describe_value(name)} is duplicate; add ... after the value to group by key"
            )
        else:
            keyed[name] = result
    return listed if node.result_key is None else keyed


def _template(world: ExpressionContext, node: TemplateExpression, names: Scope) -> Value:
    if node.is_bare:
        return world.value(node.parts[0], names)
    parts = [_part(world, part, names) for part in node.parts]
    size = sum(map(len, parts))
    if size > TEXT_MAX:
        raise HclLimitExceeded(f"string of more than {TEXT_MAX} characters", node.at)
    world.charge(size >> 6, node.at)
    return "".join(parts)


def _part(world: ExpressionContext, node: Expression, names: Scope) -> str:
    value = world.value(node, names)
    try:
        return as_text(value)
    except HclError:
        raise HclError(f"{kind_of(value)} cannot be converted to a string", node.at) from None


def _template_if(world: ExpressionContext, node: TemplateIf, names: Scope) -> Value:
    _require_known(world, node.test, names)
    chosen = node.yes if as_bool(world.value(node.test, names)) else node.no
    return _template(world, chosen, names)


def _template_for(world: ExpressionContext, node: TemplateFor, names: Scope) -> Value:
    inner = dict(names)
    parts: list[str] = []
    size = 0
    for key, value in iteration_pairs(world.value(node.source, names)):
        world.charge(1, node.at)
        if node.key:
            inner[node.key] = key
        inner[node.value] = value
        parts.append(_template(world, node.body, inner))
        size += len(parts[-1])
        if size > TEXT_MAX:
            raise HclLimitExceeded(f"string of more than {TEXT_MAX} characters", node.at)
    return "".join(parts)


_EVALUATORS: dict[type[Expression], Callable[..., Value]] = {
    Literal: _literal,
    TemplateExpression: _template,
    TemplateIf: _template_if,
    TemplateFor: _template_for,
    Traversal: _traversal,
    GetAttr: _attribute,
    Index: _index,
    Splat: _splat,
    FunctionCall: _call,
    Unary: _unary,
    Binary: _binary,
    Conditional: _conditional,
    ListLiteral: _list,
    ObjectLiteral: _object,
    ForExpression: _for,
}
