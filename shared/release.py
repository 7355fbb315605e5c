"""The release of the package.

`query.cluster`, the AsyncAPI document and `caravan --version` show it. CORE_VERSION (schemas/envelope.py) is apart and
rises only when decisions change. A tidy test holds the release equal to `version` in pyproject.toml; the installed
metadata is not read, because a tree may run beside another installation.
"""

RELEASE = "0.1.0"
