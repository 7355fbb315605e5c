"""Short ways to work out a piece of HCL in a test."""

from typing import Any

from shared.jobspec.hcl.blocks import ResolvedBlock
from shared.jobspec.hcl.document import Document, VariableInputs
from shared.jobspec.hcl.evaluate import ExpressionContext
from shared.jobspec.hcl.syntax.parser import parse_expression


def value(text: str, **names: Any) -> Any:
    """Work out one expression."""
    return ExpressionContext(seed="test").value(parse_expression(text), names)


def document(text: str, **given: Any) -> tuple[dict[str, Any], list[tuple[int, str]]]:
    """Work out a file of one block: its attributes, and the faults as (line, message)."""
    found = Document(text, VariableInputs(**given))
    blocks = found.blocks()
    attributes = {key: one for key, (one, _) in blocks[0].attributes.items()} if blocks else {}
    return attributes, [(one.line, one.message) for one in found.faults]


def blocks(text: str, **given: Any) -> tuple[ResolvedBlock, ...]:
    """Work out a file without faults."""
    found = Document(text, VariableInputs(**given))
    made = found.blocks()
    assert found.faults == []
    return made
