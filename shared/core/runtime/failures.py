"""What a role says of an exception that one request caused: enough to find the place, one line, no data of the request.

Next: `replicated_role.py`.
"""

_TEXT_CHARS_MAX = 300


def describe_failure(err: BaseException) -> str:
    """Name the exception and where it was raised, in one line of at most some hundred characters."""
    trace = err.__traceback__
    place = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    text = " ".join(str(err).split())[:_TEXT_CHARS_MAX]
    said = f"{type(err).__name__}: {text}" if text else type(err).__name__
    return f"it could not be handled: {said} ({place})"
