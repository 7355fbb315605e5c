"""Signs a GET of an S3 shaped store (AWS signature version 4), so that no client library is needed.

Pure: the instant is an argument. Source: the documented algorithm and its example.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

#: Digest of the body of a GET, which has none.
_EMPTY = hashlib.sha256(b"").hexdigest()
_SERVICE = "s3"
DEFAULT_REGION = "us-east-1"


class AwsKeys(NamedTuple):
    """Credentials. `token`: of temporary ones."""

    key_id: str
    secret: str
    token: str = ""


def aws_region(host: str, said: str) -> str:
    """Tell the region: as said, else from a name such as `s3.eu-west-1.amazonaws.com`, else the default one."""
    parts = host.split(".")
    if said or parts[-2:] != ["amazonaws", "com"]:
        return said or DEFAULT_REGION
    near = parts[-3]
    if near.startswith("s3-"):
        return near.removeprefix("s3-")
    return DEFAULT_REGION if near == "s3" else near


def signed_headers(
    url: str, keys: AwsKeys, *, region: str, stamp: str, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the headers of a signed GET. `stamp`: the instant as 20130524T000000Z; `more`: signed as well."""
    parts = urlsplit(url)
    headers = {"host": parts.netloc.rpartition("@")[2], "x-amz-content-sha256": _EMPTY}
    headers |= {"x-amz-date": stamp, **{name.lower(): text for name, text in (more or {}).items()}}
    if keys.token:
        headers["x-amz-security-token"] = keys.token
    names = ";".join(sorted(headers))
    query = sorted(
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
    )
    request = "\n".join(
        (
            "GET",
            quote(unquote(parts.path) or "/", safe="/-_.~"),
            "&".join(f"{name}={value}" for name, value in query),
            *(f"{name}:{headers[name].strip()}" for name in sorted(headers)),
            "",
            names,
            _EMPTY,
        )
    )
    scope = f"{stamp[:8]}/{region}/{_SERVICE}/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    key = f"AWS4{keys.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"AWS4-HMAC-SHA256 Credential={keys.key_id}/{scope}"
    del headers["host"]
    return {**headers, "authorization": f"{credential},SignedHeaders={names},Signature={signature}"}
