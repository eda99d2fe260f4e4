"""Reads files that may be damaged, or made to do harm, within bounds.

Only regular files are read and written: a pipe would be waited for, and a device may never end. How large a file is,
how deep it is nested, how long its numbers are and how often its YAML aliases repeat what they stand for are bounded:
fifty thousand brackets overflow the C stack of PyYAML's parser, and a few aliases of aliases, or merge keys of merge
keys, fill the memory.

What cannot be opened or read raises `OSError`; what is not as it must be raises `UnusableFileError`. Its message
follows the file's name: "is a named pipe, ...". Callers say which exit status that is.
"""

import errno
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import Any

import yaml

MOST_BYTES = 16 * 2**20  # of a JSON or YAML file of a run; a summary of 4,096 workers has 2 MiB
MOST_DEPTH = 64  # of lists and mappings in each other
MOST_NODES = 2_000_000  # values of a YAML file; where aliases repeat one, each time counts
MOST_DIGITS = 308  # a float holds every whole number of fewer
TEXT = 100  # characters that count as one value
MOST_COMPOSED = 20_000  # values of a YAML file that Hydra reads, at 0.1 ms each
_FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML has C

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_OPENERS = re.compile(r"[\[{]")
_BLOCKS = re.compile(r"^[\ufeff \t\-?:]+", re.MULTILINE)  # a block inside another one begins further to the right
OTHER_BREAKS = "\r\x85\u2028\u2029"  # line breaks of YAML's that `_BLOCKS` does not know


class UnusableFileError(ValueError):
    """A file is not one that can be read: a pipe, too large, nested too deeply, no JSON."""


class StrictYamlLoader(_FASTEST):
    """Refuses a mapping that has a key twice: PyYAML takes the last one and says nothing."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._seen: set[int] = set()  # what is merged may be looked at twice, and then holds what it merged itself

    def flatten_mapping(self, node: Any) -> None:
        if id(node) not in self._seen:
            self._seen.add(id(node))
            keys = Counter((key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            for (_, key), count in keys.items():
                if count > 1:
                    raise UnusableFileError(f"has the key {key!r} {count} times in one mapping. Keep one of them")
        super().flatten_mapping(node)


# Whole numbers and fractions as the command line reads them: YAML 1.1 makes 90 of 1:30, and 15 of 017.
_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)\Z"),
    "tag:yaml.org,2002:float": re.compile(
        r"""(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?
        |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z""",
        re.VERBOSE,
    ),
}
StrictYamlLoader.yaml_implicit_resolvers = {
    first: [(tag, _NUMBERS.get(tag, rule)) for tag, rule in rules]
    for first, rules in _FASTEST.yaml_implicit_resolvers.items()
}
_OTHER_NUMBER = re.compile(  # octal, and in sixties
    r"[-+]?(?:0[0-7_]+|[1-9][0-9_]*(?::[0-5]?[0-9])+|[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*)"
)
_MAY_BE_OTHER = re.compile(r"(?<![\w.])[-+]?(?:0[0-9_]|[0-9_]+:[0-9])")


class NotRegularError(UnusableFileError):
    """A name belongs to a pipe, a socket, a device or a directory, where a regular file is needed."""


def open_regular(path: str | Path) -> BufferedReader:
    """Opens `path` for reading; a pipe or a device is refused without waiting for it."""
    return os.fdopen(_descriptor(path, os.O_RDONLY, "read"), "rb")


def open_to_write(path: str | Path, flags: int = os.O_APPEND) -> int:
    """A descriptor of `path`, made where it is not there, to write and to read; a pipe is refused as above."""
    return _descriptor(path, os.O_RDWR | os.O_CREAT | flags, "written")


def _descriptor(path: str | Path, flags: int, done: str) -> int:
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o644)
    except OSError as error:
        kind = {errno.ENXIO: "a socket or a device", errno.EISDIR: "a directory"}.get(error.errno or 0)
        if kind is None:
            raise
        raise NotRegularError(f"is {kind}, and only regular files are {done}") from None
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise NotRegularError(f"is {_KINDS.get(kind, 'no file')}, and only regular files are {done}")
    return descriptor


def check_regular(path: str | Path) -> None:
    """Checks a file that a library opens by its name."""
    open_regular(path).close()


def read_bytes(path: str | Path, most: int | None = MOST_BYTES) -> bytes:
    """`most`: None for as much as the file has when it is opened."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size if most is None else min(size, most) + 1)
        if most is not None and size < len(content) <= most:  # it grew; a buffer of `most` bytes for each file is slow
            content += file.read(most + 1 - len(content))
    if most is not None and len(content) > most:
        raise UnusableFileError(f"is larger than {most:,} bytes")
    return content


def read_text(path: str | Path, most: int = MOST_BYTES) -> str:
    return _decoded(read_bytes(path, most))


def read_json(path: str | Path, most: int = MOST_BYTES) -> Any:
    return parse_json(read_bytes(path, most))


def read_yaml(path: str | Path, most: int = MOST_BYTES) -> Any:
    return parse_yaml(read_bytes(path, most))


def parse_json(text: str | bytes, huge: Callable[[str], Any] | None = None) -> Any:
    """Plain values, nested at most `MOST_DEPTH` deep, whole numbers of at most `MOST_DIGITS` digits.

    `huge`: what to make of longer numbers, instead of refusing them.
    """
    plain = text if isinstance(text, str) else _decoded(text)
    try:
        value = _value(plain, huge)
    except RecursionError:
        raise _too_deep() from None
    except UnusableFileError:
        raise
    except ValueError as error:
        raise UnusableFileError(f"is not valid JSON ({error})") from None
    if plain.count("[") + plain.count("{") > MOST_DEPTH:
        _check_levels(value)
    return value


def _value(text: str, huge: Callable[[str], Any] | None) -> Any:
    if len(text) <= MOST_DIGITS:  # as most records, of which there are many
        return json.loads(text)

    def whole(digits: str) -> Any:
        if len(digits) <= MOST_DIGITS:
            return int(digits)
        if huge is None:
            raise _too_long()
        return huge(digits)

    return json.loads(text, parse_int=whole)


def parse_yaml(text: str | bytes, most: int = MOST_NODES) -> Any:
    """Plain values within the same bounds, and `most` of them. YAML's other types (dates, sets, bytes) are refused."""
    plain = text if isinstance(text, str) else _decoded(text)
    try:
        # merge keys (`<<`) copy what an alias stands for before anything could be counted
        if "*" in plain or len(plain) > most or _may_be_deep(plain):
            _check_events(plain, most)
        value = yaml.load(plain, StrictYamlLoader)
    except RecursionError:
        raise _too_deep() from None
    except UnusableFileError:
        raise
    # PyYAML's constructors of numbers and dates raise whatever Python raises on what they are given
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
        raise UnusableFileError(f"is not valid YAML ({' '.join(str(error).split())})") from None
    check_values(value)
    return value


def check_yaml(text: str) -> None:
    """Bounds the depth and the number of values of what Hydra will read, by events alone.

    Raises `UnusableFileError`, also for numbers that Hydra would read otherwise than the command line does.
    """
    try:
        if "*" in text or len(text) > MOST_COMPOSED or _may_be_deep(text):
            _check_events(text, MOST_COMPOSED)
        if _MAY_BE_OTHER.search(text):
            for event in yaml.parse(text, StrictYamlLoader):
                plain = isinstance(event, yaml.ScalarEvent) and not event.style and event.tag is None
                if plain and _OTHER_NUMBER.fullmatch(event.value):
                    raise UnusableFileError(
                        f"has {event.value}, which is another number in YAML. Write the number in tens, or quote it"
                    )
    except yaml.YAMLError as error:
        raise UnusableFileError(f"is not valid YAML ({' '.join(str(error).split())})") from None


def check_values(value: Any) -> None:
    """Raises `UnusableFileError` unless `value` is made of plain values within the bounds."""
    level, seen = [value], 0
    for _ in range(MOST_DEPTH + 1):
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                below += node.keys()
                below += node.values()
            elif isinstance(node, list):
                below += node
            elif isinstance(node, int) and node.bit_length() > 1023:
                raise _too_long()
            elif isinstance(node, str) and not node.isascii():
                _check_text(node)
            elif node is not None and not isinstance(node, str | int | float):
                raise UnusableFileError(f"holds a {type(node).__name__}, which is no value of a configuration")
            if seen + len(below) > MOST_NODES:
                raise _too_many()
        if not below:
            return
        seen, level = seen + len(below), below
    raise _too_deep()


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")  # without the mark with which editors on Windows begin a file
    except UnicodeDecodeError as error:
        raise UnusableFileError(f"is not UTF-8 (its byte {error.start})") from None


def _check_levels(value: Any) -> None:
    """Checks the depth of parsed JSON, whose values are plain by themselves."""
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        inside = (node.values() if isinstance(node, dict) else node for node in level)
        level = [child for children in inside for child in children if isinstance(child, dict | list)]
        if not level:
            return
    raise _too_deep()


def _may_be_deep(text: str) -> bool:
    """A quick look, which takes no deep text for a flat one: blocks are counted by how far they are indented."""
    if any(mark in text for mark in OTHER_BREAKS):
        return True
    blocks = max(map(len, _BLOCKS.findall(text)), default=0)
    return 2 * blocks + 1 + len(_OPENERS.findall(text)) > MOST_DEPTH


def _check_events(text: str, most: int) -> None:
    """The parser's events come one by one, without recursion. An alias counts as all that it stands for, and a text as
    one value for each `TEXT` characters.
    """
    sizes: list[int] = [0]  # of the collections that are open
    anchors: list[str | None] = []
    known: dict[str, int] = {}
    for event in yaml.parse(text, StrictYamlLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            sizes.append(1)
            anchors.append(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            size, anchor = sizes.pop(), anchors.pop()
            sizes[-1] += size
            known |= {anchor: size} if anchor else {}
        elif isinstance(event, yaml.AliasEvent):
            sizes[-1] += known.get(event.anchor, most if event.anchor in anchors else 1)
        elif isinstance(event, yaml.ScalarEvent):
            size = 1 + len(event.value) // TEXT
            sizes[-1] += size
            known |= {event.anchor: size} if event.anchor else {}
        if len(anchors) > MOST_DEPTH:
            raise _too_deep()
        if sizes[-1] > most:
            raise _too_many(most)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UnusableFileError("holds bytes that are no UTF-8") from None


def _too_deep() -> UnusableFileError:
    return UnusableFileError(f"is nested more than {MOST_DEPTH} deep")


def _too_many(most: int = MOST_NODES) -> UnusableFileError:
    return UnusableFileError(f"holds more than {most:,} values, or itself")


def _too_long() -> UnusableFileError:
    return UnusableFileError(f"holds a whole number of more than {MOST_DIGITS} digits")
