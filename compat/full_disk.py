"""Tells why a file cannot be written, also by the messages of libraries whose errors have no class or number for it.

torch's writer of files notices it at the end alone, and safetensors passes on Rust's words.
"""

import errno
import re
import resource

NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
_SIGNS = re.compile(rf"inline_container\.cc.*unexpected pos|\(os error ({'|'.join(map(str, NUMBERS))})\)")


def says_unwritten(message: str) -> bool:
    return _SIGNS.search(message) is not None


def why_unwritten(error: OSError) -> str:
    """Returns the system's words, with the limit of this process that a file would exceed."""
    said, (limit, _) = error.strerror or str(error), resource.getrlimit(resource.RLIMIT_FSIZE)
    if error.errno != errno.EFBIG or limit == resource.RLIM_INFINITY:
        return said
    return f"{said}: a process may write files of {limit / 2**20:,.1f} MiB (ulimit -f)"
