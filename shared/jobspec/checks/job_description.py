"""The `ui` block: what is shown of a job to people. It decides nothing, and an edit of it restarts nothing."""

from urllib.parse import urlsplit

import msgspec

from schemas.job_answers import JobDescription, JobLink
from shared.jobspec.checks.error_list import ErrorList
from shared.jobspec.nomad.policies import Ui

DESCRIPTION_CHARS_MAX, LABEL_CHARS_MAX, URL_CHARS_MAX, LINKS_MAX = 1_000, 100, 2_000, 50
#: What a console may link to: others, such as javascript, would run there.
SCHEMES = ("http", "https")


class _Described(msgspec.Struct):
    """The one block of a registered job that is read."""

    ui: Ui | None = msgspec.field(name="UI", default=None)


_DECODER = msgspec.json.Decoder(_Described)


def check_description(faults: ErrorList, ui: Ui) -> None:
    """Check the texts and addresses of a job's description."""
    if len(ui.description) > DESCRIPTION_CHARS_MAX or "\0" in ui.description:
        text = f"at most {DESCRIPTION_CHARS_MAX} characters are allowed"
        faults.add("Job.UI.Description", text)
    if len(ui.links) > LINKS_MAX:
        faults.add("Job.UI.Links", f"{len(ui.links)} links, at most {LINKS_MAX} are allowed")
        return
    for at, one in enumerate(ui.links):
        path = f"Job.UI.Links[{at}]"
        if not 0 < len(one.label) <= LABEL_CHARS_MAX or not one.label.isprintable():
            faults.add(f"{path}.Label", f"1 to {LABEL_CHARS_MAX} printable characters are needed")
        if not _is_address(one.url):
            faults.add(f"{path}.URL", f"must be an address with {' or '.join(SCHEMES)}")


def _is_address(text: str) -> bool:
    try:
        found = urlsplit(text)
    except ValueError:
        return False
    is_text = len(text) <= URL_CHARS_MAX and text.isprintable() and " " not in text
    return is_text and found.scheme in SCHEMES and bool(found.hostname)


def job_description(spec: bytes) -> JobDescription | None:
    """Read the description of a registered job; None: it has none that can be shown."""
    try:
        ui = _DECODER.decode(spec).ui
    except msgspec.MsgspecError:
        return None
    if ui is None or not (ui.description or ui.links):
        return None
    faults = ErrorList()
    # Jobs that were accepted before the block was read may have anything.
    check_description(faults, ui)
    if faults.found:
        return None
    return JobDescription(ui.description, tuple(JobLink(one.label, one.url) for one in ui.links))
