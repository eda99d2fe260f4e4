"""Keeps secrets out of config dumps, logs and echoes of the command line."""

import re
from collections.abc import Iterable
from typing import Any

HIDDEN = "***"
SHORTEST = 4  # characters of a secret that is looked for in other texts
# The last word of a key decides: api_key, hfToken and db-password are secrets, max_tokens and monkey are not.
_SECRET_WORDS = frozenset(
    {"key", "token", "password", "secret", "passwd", "passphrase", "credential", "credentials"}
    | {"apikeys", "secrets", "passwords", "pwd"}
)
_SECRET_ENDS = ("token", "password", "secret", "apikey", "accesskey", "secretkey", "privatekey")  # written as one word
_PLURAL_KEYS = ("api", "keys")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_URL = re.compile(r"(?<=[A-Za-z0-9+.-])://\S+")
# Before the host; or before the last @, of a password that nobody has encoded: it may hold /, ? and #
_URL_LOGIN = re.compile(r"(?<=://)(?:[^/?#\s]+|[^/?#@:\s]*:(?!\d*[/?#])\S+)(?=@)")
_URL_QUERY = re.compile(r"(?<=[?&#])([^=&#\s]*=)[^&#\s]+")
_TYPED_KEY = re.compile(r"""([\w.-]+)(?:@\w*)?["']?\s*[=:]\s*""")
_TYPED_VALUE = re.compile(r""""[^"]*"?|'[^']*'?|\{[^}]*|\w+\([^)]*|[^,{}\[\]'"]*""")
_PIECE = re.compile(r"""[^\s,:{}\[\]()'"]+(?![^\s,:{}\[\]()'"]*[:(])""")  # a text in a list or a mapping
_known: set[str] = set()  # the secrets of this process's configurations


def redact(config: dict[str, Any]) -> dict[str, Any]:
    """A copy of `config` with `***` for the values of keys that look secret, at any depth.

    Logins and queries' values inside URLs (`https://user:password@host?key=value`) are hidden too. An unset (None)
    secret stays None.
    """
    return {
        key: HIDDEN if is_secret(str(key)) and not _is_token_id(str(key), value) else _redact_value(value)
        for key, value in config.items()
    }


def shown(key: str, value: Any) -> Any:
    """Returns the value for a message: itself, or what `redact` makes of it if it is or has a secret."""
    return redact({key: value})[key] if holds_secret(key, value) else value


def holds_secret(key: str, value: Any) -> bool:
    """Returns True if `redact` hides the value, or a part of it."""
    return HIDDEN in str(redact({key: value}))


def know_secrets(config: dict[str, Any]) -> None:
    """Has `hide_known` hide the values that `redact` hides in `config`, from now on."""
    for key, value in config.items():
        if is_secret(str(key)) and not _is_token_id(str(key), value):
            _known.update(text for text in _texts(value) if len(text) >= SHORTEST)
        else:
            _know_secrets_in(value)


def _know_secrets_in(value: Any) -> None:
    if isinstance(value, dict):
        know_secrets(value)
    for each in value if isinstance(value, list | tuple) else ():
        _know_secrets_in(each)


def hide_known(text: str) -> str:
    """Returns `text` without the secrets of this process's configurations and without logins in URLs.

    A message of a database or a traceback may have them.
    """
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return hide_in_urls(text)


def know_typed(arguments: Iterable[str]) -> None:
    """Has `hide_known` hide the values of secret keys in a command line, also in overrides that cannot be read."""
    for argument in arguments:
        for found in _TYPED_KEY.finditer(argument):
            whole = argument[: found.start()].strip("+~\"'") == ""  # the argument's own value, which may be a list
            text = argument[found.end() :] if whole else _TYPED_VALUE.findall(argument, found.end())[0]
            if is_secret(found[1]) and not _is_token_id(found[1], int(text) if text.isdecimal() else text):
                _known.update(part for part in (text, *_PIECE.findall(text)) if len(part) >= SHORTEST)


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict | list | tuple):
        each = value.values() if isinstance(value, dict) else value
        return [text for one in each for text in _texts(one)]
    return [] if value is None or isinstance(value, bool) else [str(value)]


def is_secret(key: str) -> bool:
    """Returns whether the value under `key` must be hidden. The last part of a dotted key decides."""
    words = [word.lower() for word in _words(key.rpartition(".")[2])]
    last = words[-1] if words else ""
    return last in _SECRET_WORDS or last.endswith(_SECRET_ENDS) or tuple(words[-2:]) == _PLURAL_KEYS


def _is_token_id(key: str, value: Any) -> bool:
    """`pad_token: 0` numbers a token of a vocabulary; and what is unset hides nothing."""
    return value is None or (isinstance(value, int) and _words(key)[-1].lower().endswith("token"))


def _words(key: str) -> list[str]:
    """Returns the words of a key, without the number at its end: `api_key2` is a secret, too."""
    return _WORDS.findall(key.rstrip("0123456789"))


def _redact_value(value: Any) -> Any:
    if isinstance(value, dict):
        return redact(value)
    if isinstance(value, list | tuple):
        return [_redact_value(item) for item in value]
    if isinstance(value, str):
        return hide_in_urls(value)
    return value


def hide_in_urls(text: str) -> str:
    """Hides the login and every query value of the URLs in a text: a driver's option may be a secret, too."""
    return _URL.sub(lambda url: _URL_QUERY.sub(rf"\1{HIDDEN}", _URL_LOGIN.sub(HIDDEN, url[0])), text)
