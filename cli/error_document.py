"""An error as JSON, for commands that were asked for `--format json`.

Messages read `KEY=VALUE: what is wrong. Choose X or Y.` Key, value and suggestions are taken from that form, except
where the error knows its alternatives itself.
"""

import re
from collections.abc import Iterator
from typing import Any

from ..conf.errors import ConfigError

_FLAG = re.compile(r"(?P<key>--?[A-Za-z][\w-]*)(?:[= ](?P<value>[^\n]*?))?: ")
_FILE = re.compile(r"--config [^\n]*?: (?=[A-Za-z_][\w.]*(?:=[^\n]*?)?: )")  # a file, before its key that is wrong
_KEY = re.compile(r"(?P<key>[A-Za-z_]\w*(?:[./]\w+)*)(?:=(?P<value>[^\n]*?))?: ")
_NAMED = re.compile(r"(?:no )?(?P<key>run|column)(?: name)? '(?P<value>[^']*)'")
_NO_SUCH = re.compile(r"[\w ]+: no such (?:option:|command) '?(?P<key>[^' ;]+)")
_OPTION = re.compile(r".*?: invalid value for '(?P<key>--[\w-]+)[^']*': '(?P<value>[^']*)'")
_PATTERNS = (_OPTION, _NO_SUCH, _NAMED, _FLAG, _KEY)
_WAYS_OUT = (
    re.compile(r"\bChoose (.+?)(?:\.(?: |$)|$)", re.DOTALL),
    re.compile(r"\bdid you mean ([^?;(]+)"),
    re.compile(r"(?:; |KEY=VALUE: )it is (\S+)"),
    re.compile(r"\(valid: ([^)]*)\)"),
)
_BETWEEN = re.compile(r",? or |, ")
_WORD = re.compile(r"[\w.+-]+")


def document(code: int, message: str, error: BaseException | None = None) -> dict[str, Any]:
    """Returns the exit status, the key and the value that are wrong, the message, and what to choose instead."""
    said = _FILE.sub("", message, count=1) if _FILE.match(message) else message
    match = next((found for pattern in _PATTERNS if (found := pattern.match(said))), None)
    named = match.groupdict() if match else {}
    key, value = named.get("key"), named.get("value")
    refused = error.refusals if isinstance(error, ConfigError) else ()
    known = [f"{each.key}={each.value}" for refusal in refused for each in refusal.instead]
    suggestions = known or list(_suggested(message, key if value is not None else None))
    return {
        "code": code,
        "key": key,
        "value": value,
        "message": message,
        "suggestions": list(dict.fromkeys(suggestions)),
    }


def _suggested(message: str, key: str | None) -> Iterator[str]:
    """The alternatives of a message. A bare word after `KEY=a` is another value of that key."""
    for pattern in _WAYS_OUT:
        found = pattern.search(message)
        if found is None:
            continue
        current = "" if pattern is _WAYS_OUT[0] or key is None or not _is_chosen(key) else f"{key}="
        for quoted in _BETWEEN.split(found[1].strip()):
            piece = quoted.strip("'")  # the parser's, around a command
            before, equals, _ = piece.partition("=")
            if equals and " " not in before:
                current = f"{before}="
                yield piece
            else:
                yield f"{current}{piece}" if _WORD.fullmatch(piece) else piece
        return


def _is_chosen(key: str) -> bool:
    """Returns whether it is a configuration's key, not an option or a word of ours."""
    return not key.startswith("-") and key not in ("run", "column")
