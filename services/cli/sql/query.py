"""`caravan sql`: one query, or the shell."""

import sys

from services.cli.runtime.output import CliError, CommandOutput
from services.cli.sql.answer_table import print_answer
from services.cli.sql.source import SqlSource


def sql(
    out: CommandOutput, *, question: str, directory: str, live: bool, comma: bool, limit: int
) -> int:
    """Answer a query, or start the shell. Exit 2: a part of the log could not be read, and is not in the answer."""
    if out.is_json and comma:
        raise CliError("usage", "--json and --csv exclude each other")
    if question == "-" or (not question and not sys.stdin.isatty()):
        question = sys.stdin.read()
    if question.strip():
        with SqlSource(directory, is_live=live) as source:
            for problem in source.problems:
                out.note(problem)
            print_answer(out, source, source.ask(question), comma=comma, limit=limit)
            return 2 if source.problems else 0
    if out.is_json or comma or not sys.stdin.isatty():
        raise CliError("usage", "no query: caravan sql 'SELECT …'")
    # Imported here: it brings readline along.
    from services.cli.sql.shell import run_shell

    with SqlSource(directory, is_live=live) as source:
        return run_shell(out, source, limit=limit)
