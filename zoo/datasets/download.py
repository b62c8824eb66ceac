"""Downloads with a time limit and a checksum.

`keras.utils.get_file` waits without limit and keeps a wrong file.
"""

import hashlib
import http.client
import urllib.request
from pathlib import Path

from zoo.io import replace

SECONDS = 10  # ours: for the connection, and for each read
MAX_BYTES = 2**24  # ours: Penn Treebank's train, the largest file, has 5,101,618
FAILURES = (OSError, http.client.HTTPException)  # of `urlopen` and `fetch`


class DownloadError(RuntimeError):
    """Data are missing and could not be downloaded; the message lists the alternatives."""


def fetch(url: str, path: Path, sha256: str) -> None:
    """Download `url`, of at most `MAX_BYTES`, to the file `path`, completely or not at all.

    Raises:
        OSError: If there is no answer in time, or the content has another SHA-256.
    """
    with urllib.request.urlopen(url, timeout=SECONDS) as response:
        content = response.read(MAX_BYTES + 1)
    received = hashlib.sha256(content).hexdigest()
    if received != sha256:
        raise OSError(
            f"{url} must have the SHA-256 {sha256}. Received: {len(content)} bytes with {received}"
        )
    replace(path, lambda temporary: temporary.write_bytes(content))
