"""The base of all Structs of Nomad's JSON job: names and labels of a block in a job file.

A field's `name` is Nomad's name in JSON. In HCL, YAML and TOML it is that name in snake_case, unless the block's `HCL`
says otherwise. Durations end in `_ns`: whole nanoseconds in JSON, `30s` in job files.
"""

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from schemas.base import SECOND_NS

HOUR_NS = 3600 * SECOND_NS

EMPTY_OBJECT = msgspec.Raw(b"{}")


class JobBlock(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A block of a job. Fields without a place here are ignored in decoding.

    Out of the garbage collector's sight (gc=False): decoded values are trees, and thousands are decoded a second.
    """

    #: JSON name -> name in job files, where that is not the same in snake_case.
    HCL: ClassVar[Mapping[str, str]] = {}
    #: JSON name of the field that the block's label fills; empty: the block has no label.
    LABEL: ClassVar[str] = ""
