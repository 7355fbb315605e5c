"""The exception that refuses a submission against the state, and the size bound of texts made here.

Raised where a submission is decided (`jobs/dispatch.py`, `jobs/versions.py`), turned into a fact in
`jobs/submissions.py`.
"""

#: Canonical bytes of a job, as at its submission.
SPEC_BYTES_MAX = 256 * 1024


class SubmissionFault(Exception):
    """Why a submission changes nothing. `code`: as in ErrorDetail."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
