"""The source of a job: the file that its author wrote, packed beside the job's registration in the log.

Nothing is decided by it and no state holds it: it is read back from the record of a version, as
shared/query/job_source.py says.
"""

import zlib

import msgspec
from msgspec.structs import replace

from schemas.base import Command
from schemas.envelope import ENCODER
from schemas.jobs import RegisterJob
from schemas.rollouts import RegisterJobs
from schemas.submissions import JobSource
from shared.errors import CommandInvalid
from shared.jobspec.strict_json import JsonObject, check_known_keys

#: The key of a source beside its job.
SOURCE_KEY = "Submission"
#: Bytes of a source when unpacked: what packed it was a part of a message.
_UNPACKED_BYTES_MAX = 4 * 1024 * 1024
_DECODER = msgspec.json.Decoder(JobSource)


def packed_source(beside: JsonObject) -> bytes:
    """Pack the source beside a job. Raises CommandInvalid."""
    value = beside[SOURCE_KEY]
    if not beside.get("accept_unknown"):
        check_known_keys(value, JobSource, SOURCE_KEY)
    try:
        source = msgspec.convert(value, JobSource)
    except msgspec.ValidationError as err:
        message, _, at = str(err).partition(" - at `$")
        raise CommandInvalid("invalid", message, SOURCE_KEY + at.removesuffix("`")) from err
    return pack_source(source)


def pack_source(source: JobSource) -> bytes:
    """Make what the log keeps of a source; of an empty one nothing."""
    return zlib.compress(ENCODER.encode(source)) if source.source else b""


def unpack_source(packed: bytes) -> JobSource | None:
    """Read what the log keeps; None: nothing, or what is no source."""
    if not packed:
        return None
    try:
        return _DECODER.decode(zlib.decompressobj().decompress(packed, _UNPACKED_BYTES_MAX))
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError):
        return None


def without_source(command: Command) -> Command:
    """The command without the sources of its jobs, and with a warning of each; itself where it has none."""
    if isinstance(command, RegisterJobs) and any(one.source for one in command.jobs):
        return replace(command, jobs=tuple([_left_out(one) for one in command.jobs]))
    return _left_out(command) if isinstance(command, RegisterJob) else command


def _left_out(command: RegisterJob) -> RegisterJob:
    if not command.source:
        return command
    text = f"job source too large: {len(command.source)} bytes when compressed; it is not kept"
    return replace(command, source=b"", warnings=(*command.warnings, text))
