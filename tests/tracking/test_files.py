"""Files that may be damaged or made to do harm are read within bounds, or refused with a reason."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from paceline.tracking.checksums import json_is_whole, json_sealed, marked, verdict_on
from paceline.tracking.configurations import parse_configuration
from paceline.tracking.files import (
    MOST_DEPTH,
    MOST_DIGITS,
    UnusableFileError,
    check_values,
    check_yaml,
    open_regular,
    parse_json,
    parse_yaml,
    read_bytes,
    read_json,
    read_text,
    read_yaml,
)

plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**300), 10**300) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(plain_values)
def test_what_is_within_the_bounds_is_read_as_it_was_written(value):
    assert parse_yaml(yaml.safe_dump(value, allow_unicode=False)) == value


def nested(depth: int, kind: str) -> str:
    match kind:
        case "flow":
            return "[" * depth + "]" * depth
        case "spaced":
            return "[ " * depth + "]" * depth
        case "mappings":
            return '{"a": ' * depth + "1" + "}" * depth
        case "dashes":
            return "- " * depth + "1"
        case "questions":
            return "? " * depth + "1"
        case "marked":
            return "\ufeff" + "- " * depth + "1"
        case "returns":
            return "\r".join(" " * i + "a:" for i in range(depth)) + " 1"
        case "same column":
            return "\n".join("  " * (i // 2) + ("a:" if i % 2 == 0 else "- b:") for i in range(depth))
    return "\n".join(" " * i + "a:" for i in range(depth)) + " 1"


KINDS = ("flow", "spaced", "mappings", "dashes", "questions", "marked", "returns", "same column", "indented")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [MOST_DEPTH * 2 + 2, 3000])
def test_deep_yaml_is_refused_whatever_it_is_made_of(kind: str, depth: int) -> None:
    for parse in (parse_yaml, check_yaml):
        with pytest.raises(UnusableFileError, match="nested more than"):
            parse(nested(depth, kind))


@pytest.mark.parametrize("kind", ["flow", "dashes", "mappings"])
def test_fifty_thousand_levels_do_not_crash_the_process(kind: str) -> None:
    """In a process of its own: what this is about is a segmentation fault."""
    program = "import sys; from paceline.tracking.files import parse_yaml; parse_yaml(sys.stdin.read())"
    done = subprocess.run(
        [sys.executable, "-c", program], input=nested(50_000, kind), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "nested more than" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
def test_depth_and_digits_at_the_bound_are_taken_and_beyond_it_refused(parse) -> None:
    parse("[" * MOST_DEPTH + "]" * MOST_DEPTH)
    with pytest.raises(UnusableFileError, match="nested"):
        parse("[" * (MOST_DEPTH + 2) + "]" * (MOST_DEPTH + 2))
    assert parse("1" * (MOST_DIGITS - 1)) == int("1" * (MOST_DIGITS - 1))
    for digits in (MOST_DIGITS + 2, 5000):
        with pytest.raises(UnusableFileError, match="digits"):
            parse("9" * digits)


@pytest.mark.parametrize(
    "text",
    ["", "{", "{]", "nope", '{"a": 1}}', "[" * 100_000, '{"a":' * 100_000, "\x00"],
    ids=["empty", "torn", "crossed", "word", "more", "lists", "mappings", "nul"],
)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(UnusableFileError):
        parse_json(text)


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "!!int ''",
        "!!float ''",
        "!!bool x",
        "!!timestamp x",
        "a: 2001-99-99",
        "!!binary x",
        "\x07",
        "*a",
        "!!python/object/apply:os.getpid []",
        "a: 2001-01-01",
        "!!set {a}",
        "? [a]\n: 1",
    ],
)
def test_what_is_no_yaml_of_plain_values_is_refused(text: str) -> None:
    with pytest.raises(UnusableFileError):
        parse_yaml(text)


LAUGHS = "a: &a [1, 2]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)

MERGES = "a: &a {x: 1}\n" + "".join(
    f"{b}: &{b}\n  <<: [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize("parse", [parse_yaml, check_yaml])
@pytest.mark.parametrize(
    "text", ["&a [*a]", "a: &b {c: *b}", LAUGHS, MERGES], ids=["list", "mapping", "laughs", "merges"]
)
def test_aliases_of_aliases_and_of_themselves_are_refused(parse, text: str) -> None:
    with pytest.raises(UnusableFileError, match=r"values|nested"):
        parse(text)


def test_an_alias_within_the_bounds_is_taken() -> None:
    check_yaml("a: &a [1]\nb: *a\n")
    assert parse_yaml("a: &a [1]\nb: *a\n") == {"a": [1], "b": [1]}


def test_what_hydra_reads_slowly_is_bounded_further() -> None:
    for text in ("a: &a [1, 2]\nb: [" + "*a," * 10_000 + "]", "a: [" + "1," * 21_000 + "]"):
        parse_yaml(text)
        with pytest.raises(UnusableFileError, match="more than 20,000 values"):
            check_yaml(text)


def test_a_merge_key_within_the_bounds_is_taken() -> None:
    assert parse_yaml("a: &a {x: 1}\nb:\n  <<: *a\n  y: 2\n")["b"] == {"x": 1, "y": 2}


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", "b: {a: 1, a: 2}", "b: [{a: 1, 'a': 2}]", "a: {}\nx: 1\na: {}"])
def test_a_key_that_is_there_twice_is_refused(text: str) -> None:
    for parse in (parse_yaml, parse_configuration):
        with pytest.raises(UnusableFileError, match=r"has the key 'a' 2 times in one mapping\. Keep one"):
            parse(text)


def test_a_key_may_replace_one_that_is_merged_also_where_that_is_merged_in_turn() -> None:
    assert parse_yaml("a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: *b, x: 3}")["c"] == {"x": 3}
    assert parse_yaml("- {<<: &b {<<: &a {x: 1}, x: 2}}\n- *b\n- *a") == [{"x": 2}, {"x": 2}, {"x": 1}]


def test_text_that_cannot_be_written_is_refused() -> None:
    for value in ("\ud800", ["\ud800"], {"\ud800": 1}):
        with pytest.raises(UnusableFileError, match="no UTF-8"):
            check_values(value)
    check_values("ä")


@pytest.mark.parametrize("kind", ["pipe", "device", "endless", "socket", "directory", "link to a pipe"])
def test_only_regular_files_are_read_and_nothing_is_waited_for(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name is short
    path, listening = Path("file"), socket.socket(socket.AF_UNIX)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/null")
        case "endless":
            path.symlink_to("/dev/zero")
        case "socket":
            listening.bind(str(path))
        case "directory":
            path.mkdir()
        case _:
            os.mkfifo("pipe")
            path.symlink_to("pipe")
    for read in (open_regular, read_bytes, read_text, read_json, read_yaml):
        with pytest.raises((UnusableFileError, OSError)) as caught:
            read(path)
        assert kind in ("socket", "directory") or "only regular files are read" in str(caught.value)
    listening.close()


def test_a_file_is_read_up_to_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    assert read_bytes(file, 100) == read_bytes(file, None) == b"x" * 100
    with pytest.raises(UnusableFileError, match="larger than 99 bytes"):
        read_bytes(file, 99)
    monkeypatch.setattr(os, "fstat", lambda opened: os.stat_result([stat.S_IFREG, *[0] * 9]))  # it grew since
    assert read_bytes(file, 100) == b"x" * 100
    with pytest.raises(UnusableFileError, match="larger than 99 bytes"):
        read_bytes(file, 99)
    monkeypatch.undo()
    file.write_bytes(b"a: \xff\n")
    for read in (read_text, read_yaml, read_json):
        with pytest.raises(UnusableFileError, match=r"not UTF-8 \(its byte 3\)"):
            read(file)


# -- checksums


@given(st.text().map(lambda text: text + "\n"))
def test_a_marked_text_is_whole_and_no_other_text_is(text: str) -> None:
    assert verdict_on(marked(text)) == "whole"
    assert verdict_on(f"x{marked(text)}") == "changed"
    assert verdict_on(marked(text) + "more\n") == "unmarked"
    assert verdict_on(marked(text)[:-1]) == "unmarked"


def test_a_sealed_object_is_whole_byte_for_byte_only() -> None:
    text = json_sealed({"step": 4, "files": {"a": "b"}})
    assert json_is_whole(text)
    for other in (text.replace("4", "5"), text + "\n", text.replace(" ", "  ", 1), '{"step": 4}', "[]"):
        assert not json_is_whole(other)
