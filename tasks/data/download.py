"""A checked download of one gzipped file."""

import gzip
import tempfile
import zlib
from collections.abc import Sequence
from hashlib import sha256
from http.client import HTTPException
from io import BytesIO
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from ..errors import MissingDataError

TIMEOUT_SECONDS = 30
MOST_BYTES = 256 * 2**20  # nothing here is larger; a server cannot fill the memory


def download(name: str, folder: Path, urls: Sequence[str], expected: str) -> None:
    """Put `name` (a .gz file) into `folder`, from the first of the folders `urls` that has the right content.

    `expected` is the SHA-256 of the unpacked content. The file appears whole or not at all, also when several workers
    fetch it at once. Raises MissingDataError with every address's reason.
    """
    reasons = []
    for url in urls:
        address = f"{url.rstrip('/')}/{name}"
        try:
            with urlopen(address, timeout=TIMEOUT_SECONDS) as answer:
                packed = answer.read(MOST_BYTES)
            content = gzip.GzipFile(fileobj=BytesIO(packed)).read(MOST_BYTES)
        except HTTPError as error:
            error.close()  # it is the server's answer, too
            reasons.append(f"{address}: {error}")
            continue
        except (OSError, HTTPException, EOFError, zlib.error, ValueError) as error:
            reasons.append(f"{address}: {error}")
            continue
        if sha256(content).hexdigest() == expected:
            _write(folder / name, packed)
            return
        reasons.append(f"{address}: not the content with the known SHA-256 sum")
    raise MissingDataError(f"{name} could not be downloaded ({'; '.join(reasons) or 'data.urls is empty'}).")


def _write(path: Path, content: bytes) -> None:
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
            temporary = file.name
            file.write(content)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise MissingDataError(f"{path} could not be written: {error.strerror}.") from error
