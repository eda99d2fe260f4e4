"""Reads the columns of tables in CSV, JSON lines and Parquet, by pyarrow, and refuses values that would change."""

import csv
import io
import json
import os
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from ...conf.errors import ConfigError
from ..errors import CorruptDataError
from .files import open_data, unpacked
from .sequences import is_list, is_text

FORMATS = ("csv", "tsv", "jsonl", "ndjson", "parquet")
SUFFIXES = ".csv, .tsv, .jsonl, .ndjson (each packed as .gz, too) or .parquet"
HEAD = 1 << 20  # bytes of a text that a plan looks at
EXACT = 1 << 53  # beyond it, float64 skips whole numbers, and may round one to it
MOST_DEPTH = 64  # of lists and objects of JSON in each other: pyarrow overflows the stack at some ten thousand
_OTHERS = bytes({*range(256)} - {*b'"[]{}'})
_STEPS = np.zeros(256, np.int8)  # of the depth, by the byte
_STEPS[[*b"[{"]], _STEPS[[*b"]}"]] = 1, -1
_BLANK: Any = re.compile(r"\s*")


@dataclass(frozen=True)
class Head:
    """The columns of a file. `rows`: None where all of the file would have to be read to count them."""

    names: list[str]
    types: Any  # a schema of pyarrow
    rows: int | None
    lengths: dict[str, int]  # of the first list of a column of lists
    is_empty: bool  # no row was seen
    where: str = ""  # whose columns these are: the file's, or its first rows', where further ones may have more

    @classmethod
    def of_table(cls, table: Any, schema: Any = None, rows: int | None = None) -> "Head":
        """`table`: the first rows. `schema`: of all columns, where the table has only some of them."""
        schema = table.schema if schema is None else schema
        lists = [field.name for field in table.schema if is_list(field.type)] if table.num_rows else []
        lengths = {name: len(table.column(name)[0].as_py() or ()) for name in lists}
        return cls(list(schema.names), schema, rows, lengths, not (rows or table.num_rows))


def form(path: Path) -> str:
    """Returns csv, tsv, jsonl or parquet, by the name of a file in any case; "" for others."""
    name = path.name.lower()
    packed = name.endswith(".gz")
    found = name.removesuffix(".gz").rpartition(".")[2]
    if found not in FORMATS or (packed and found == "parquet"):
        return ""
    return "jsonl" if found == "ndjson" else found


def columns_of_text(path: Path, names: list[str], used: list[str], types: dict[str, Any]) -> Any:
    """Returns the columns `used` of a CSV or TSV. Raises CorruptDataError.

    Args:
        names: All columns of the file.
        types: Those of pyarrow that columns are read as; others have the type of their values.
    """
    last = [] if names[-1] in used else names[-1:]

    def read(file: Any) -> Any:
        table = _parsed(file, path, [*used, *last], types, len(names) == 1)
        _check_closed(table.column(names[-1]), path, file)
        _check_quotes(table.num_rows, path, file)
        return table.select(used)

    return _with(path, read)


def as_written(path: Path, names: list[str], used: list[str]) -> Any:
    """Returns the columns `used` as `columns_of_text` does, as texts."""
    return columns_of_text(path, names, used, dict.fromkeys(used, import_module("pyarrow").string()))


def check_exact(table: Any, path: Path, names: list[str]) -> None:
    """Raises CorruptDataError for a number of a text that became another one as float64.

    A number with an exponent was measured: its last digit is rounded anyway.

    Args:
        table: The columns that are used.
        names: All columns of the file.
    """
    large: dict[str, np.ndarray] = {}
    for field in table.schema:
        if str(field.type) == "double":
            values = np.abs(table.column(field.name).to_numpy())
            large[field.name] = np.flatnonzero((values >= EXACT) & (values < np.inf))
    found = [name for name, rows in large.items() if len(rows)]
    if not found:
        return
    texts = as_written(path, names, found)
    for name in found:
        taken = (each.column(name).take(large[name]).to_pylist() for each in (table, texts))
        for row, value, text in zip(large[name].tolist(), *taken, strict=True):
            if "e" not in text.lower() and Decimal(text.strip()) != Decimal(value):
                raise inexact(path, name, text.strip(), row)


def columns_of_json(path: Path, used: list[str], known: list[str] | None) -> Any:
    """Returns the columns `used` of JSON lines. Raises CorruptDataError, also for a column that `known` lacks, the
    columns of the head; None: it may.
    """
    return _whole(_with(path, lambda file: _exact_json(file, path, used, known)), path)


def columns_of_parquet(path: Path, used: list[str]) -> Any:
    """Returns the columns `used` of a Parquet file. Raises CorruptDataError."""
    return _whole(_with(path, lambda file: _parquet(file).read(used, use_threads=False)), path)


def head_of(path: Path) -> Head:
    """Returns the contents that the first MiB of a text tells. Raises CorruptDataError or ConfigError."""
    if form(path) == "parquet":
        return replace(_with(path, _head_of_parquet), where=str(path))
    return _with(path, lambda file: _head_of_text(path, file), HEAD)


def with_type_of(table: Any, name: str, wanted: Any, path: Path, train: Path | None) -> Any:
    """Returns the table with a column in the type that it has in the file `train`. Raises CorruptDataError."""
    cast = _guarded(str(path), lambda: _cast(table.column(name), wanted, f"{path}: column {name}", train))
    return table.set_column(table.schema.get_field_index(name), name, cast)


def _whole(table: Any, path: Path) -> Any:
    """Raises CorruptDataError for a text that is not UTF-8, which pyarrow reads from JSON lines and Parquet."""
    for name in table.column_names:
        _guarded(f"column {name} of {path}", lambda its=table.column(name): its.validate(full=True))
    return table


def _parquet(file: Any) -> Any:
    return arrow_module("parquet").ParquetFile(file, pre_buffer=False, page_checksum_verification=True)


def _head_of_parquet(file: Any) -> Head:
    opened = _parquet(file)
    lists = [field.name for field in opened.schema_arrow if is_list(field.type)]
    first = next(opened.iter_batches(1, columns=lists), None) if lists else None
    arrow = import_module("pyarrow")
    table = arrow.table({}) if first is None else arrow.Table.from_batches([first])
    return Head.of_table(table, opened.schema_arrow, opened.metadata.num_rows)


def _head_of_text(path: Path, file: Any) -> Head:
    found = Head.of_table(_parsed(_first_rows(path, file), path))
    is_part = form(path) == "jsonl" and file.tell() == HEAD
    return replace(found, where=f"the head of {path} ({HEAD:,} bytes)" if is_part else str(path))


def _parsed(
    file: Any,
    path: Path,
    used: list[str] | None = None,
    types: dict[str, Any] | None = None,
    lone: bool = False,
) -> Any:
    """A table of the text in `file`, of the columns `used`. An empty cell, and NA without quotes, is nothing.

    Text that looks like dates stays text: pyarrow would parse it, and `2024-01-02 00:00` would be another label then.

    Args:
        lone: The file has one column, so that an empty line is an empty cell.
    """
    if form(path) == "jsonl":
        _check_first_row(file, path)
        _check_levels(file, path)
    found = _parsed_as(file, path, used, types or {}, {}, lone)
    arrow = import_module("pyarrow")
    dates = {field.name: arrow.string() for field in found.schema if arrow.types.is_temporal(field.type)}
    if not dates:
        return found
    file.seek(0)
    return _parsed_as(file, path, used, types or {}, dates, lone)


def _parsed_as(
    file: Any, path: Path, used: list[str] | None, types: dict[str, Any], dates: dict[str, Any], lone: bool
) -> Any:
    if form(path) == "jsonl":
        json = arrow_module("json")
        size = min(max(file.size(), HEAD), 2**31 - 1)  # one block has one schema
        asked = json.ParseOptions(explicit_schema=import_module("pyarrow").schema(dates) if dates else None)
        return json.read_json(file, json.ReadOptions(use_threads=False, block_size=size), asked)
    arrow = arrow_module("csv")
    return arrow.read_csv(
        file,
        arrow.ReadOptions(use_threads=False),
        arrow.ParseOptions(delimiter=_mark(path), ignore_empty_lines=not lone, newlines_in_values=True),
        arrow.ConvertOptions(
            include_columns=used,
            column_types={**types, **dates},
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _check_first_row(file: Any, path: Path) -> None:
    """Raises CorruptDataError for JSON whose first row is no mapping: pyarrow ends the process if it is null."""
    start = file.read(HEAD).removeprefix(BOM_UTF8).lstrip()
    if start and not start.startswith(b"{"):
        raise CorruptDataError(f'{path} cannot be read: its first row is no mapping, such as {{"width": 1.5}}')
    file.seek(0)


def _check_levels(file: Any, path: Path) -> None:
    """Raises CorruptDataError for JSON nested more than `MOST_DEPTH` deep: a scan of the brackets outside of quotes."""
    depth, quotes, rest = 0, 0, b""
    while block := file.read(HEAD):
        text = (rest + block).replace(rb"\\", b"")
        rest = text[-1:] if text.endswith(b"\\") else b""  # it escapes the first byte of the next block
        marks = np.frombuffer(text.replace(rb"\"", b"").translate(None, _OTHERS), np.uint8)
        inside = (quotes + np.cumsum(marks == ord('"'))) % 2
        depths = depth + np.cumsum(_STEPS[marks] * (1 - inside))
        if depths.max(initial=0) > MOST_DEPTH:
            raise CorruptDataError(
                f"{path} cannot be read: rows are nested more than {MOST_DEPTH} deep. Save flat rows"
            )
        if len(marks):
            depth, quotes = depths[-1], inside[-1]
    file.seek(0)


def _exact_json(file: Any, path: Path, used: list[str], known: list[str] | None) -> Any:
    """Returns what `columns_of_json` does. Raises CorruptDataError as `check_exact`, also within lists."""
    whole = _parsed(file, path)
    late = [name for name in whole.schema.names if known is not None and name not in known]
    if late:
        row = arrow_module("compute").index(whole.column(late[0]).is_valid(), True).as_py()
        raise CorruptDataError(
            f"{path}: column {late[0]} first stands in row {max(row, 0)} (the first is 0), below the first {HEAD:,} "
            "bytes, which say the inputs. Give it a value in each row, or choose data.inputs without it"
        )
    table = whole.select(used)
    large = [field.name for field in table.schema if _has_large(table.column(field.name))]
    if not large:
        return table
    file.seek(0)
    text = file.read().decode("utf-8-sig", errors="replace")  # numbers are looked at alone
    decoder = json.JSONDecoder(
        parse_int=Decimal, parse_float=lambda said: said if "e" in said.lower() else Decimal(said)
    )
    at = 0
    for row in range(table.num_rows):
        sample, at = decoder.raw_decode(text, _BLANK.match(text, at).end())
        for name in large:
            found = sample.get(name)
            for value in found if isinstance(found, list) else [found]:
                if isinstance(value, Decimal) and Decimal(float(value)) != value and abs(value) >= EXACT:
                    raise inexact(path, name, value, row)
    return table


def _has_large(column: Any) -> bool:
    """Returns whether a column of floats, or of lists of them, has one that may be a rounded whole number."""
    values = column.combine_chunks()
    values = values.flatten() if is_list(values.type) else values
    if str(values.type) != "double":
        return False
    return bool((np.abs(values.to_numpy(zero_copy_only=False)) >= EXACT).any())


def _cast(column: Any, wanted: Any, what: str, train: Path | None) -> Any:
    """Returns a column of the type that the file `train` has. Raises CorruptDataError where that changes a value."""
    compute, column = arrow_module("compute"), column.cast(value_type(column.type))
    column = compute.if_else(column.is_null(nan_is_null=True), None, column)  # no whole number stands for NaN
    found = column.cast(wanted, safe=False)
    same = compute.equal(found.cast(column.type, safe=False), column)
    row = compute.index(same, False).as_py()
    if row >= 0:
        raise CorruptDataError(
            f"{what} is {column[row].as_py()!r} in row {row} (from 0 on), and {found[row].as_py()!r} as {wanted}, its "
            f"type in {train}. Save both files with one type"
        )
    return found


def _first_rows(path: Path, file: Any) -> Any:
    """The whole rows of a text's first MiB, to be parsed. Raises CorruptDataError or ConfigError."""
    found = file.read(HEAD)
    if len(found) == HEAD:
        end = _last_break(found, len(found))
        if end < 0:
            raise CorruptDataError(f"{path}: its first line is longer than {HEAD:,} bytes")
        if form(path) != "jsonl":
            end = _outside_quotes(found, end)
        found = found[: end + 1]
    if form(path) == "jsonl":
        return import_module("pyarrow").BufferReader(found)
    names = found[: len(found.splitlines()[0])] if found.strip() else b""
    own = _mark(path).encode()
    mark = next((each for each in (b";", b"\t", b",") if each in names and each != own), None)
    if own not in names and mark is not None:
        raise ConfigError(
            f"{path}: has one column, {names.decode(errors='replace')[:200]!r}; a .csv file is read with commas "
            "between columns, and a .tsv file with tabs. Write numbers with a decimal point"
        )
    return import_module("pyarrow").BufferReader(found)


def _last_break(text: bytes, before: int) -> int:
    return max(text.rfind(b"\n", 0, before), text.rfind(b"\r", 0, before))


def _outside_quotes(text: bytes, end: int) -> int:
    """Returns the last line break up to `end` that no cell in quotes holds; `end` if quotes tell nothing."""
    at, is_inside = end, text.count(b'"', 0, end) % 2 == 1
    while is_inside and at >= 0:
        before = _last_break(text, at)
        is_inside ^= text.count(b'"', max(before, 0), at) % 2 == 1
        at = before
    return end if at < 0 else at


def _check_closed(last: Any, path: Path, file: Any) -> None:
    """Raises CorruptDataError for a text that ends within quotes: a cell has swallowed all rows behind it.

    Args:
        last: The last column of the file, whose last cell is at its end.
    """
    if not len(last) or not is_text(last.type):
        return
    lines = (last[-1].as_py() or "").splitlines()
    file.seek(max(0, file.size() - 2))
    if len(lines) > 1 and not file.read().rstrip(b"\r\n").endswith(b'"'):
        raise CorruptDataError(
            f"{path}: the quote before {lines[0][:80]!r} in row {len(last) - 1} is not closed (the first after the "
            "names is 0)"
        )


def _check_quotes(rows: int, path: Path, file: Any) -> None:
    """Raises CorruptDataError for text behind the quote that closes a cell of several lines.

    A text that begins with a quote was taken for a cell in quotes up to the next one, and swallowed the rows between.
    """
    file.seek(0)
    text = file.read()
    if b'"' not in text or max(map(text.count, (b"\n", b"\r"))) <= rows + 1:
        return
    lines = io.TextIOWrapper(io.BytesIO(text), "latin-1", newline="")  # any bytes, and the same marks
    reader, before = csv.reader(lines, delimiter=_mark(path), strict=True), 0
    try:
        for _ in reader:
            before = reader.line_num
    except csv.Error as error:
        if "expected after" in str(error) and reader.line_num > before + 1:
            raise CorruptDataError(
                f"{path}, line {reader.line_num}: text follows the quote that closes a cell of several lines, which "
                f"began in line {before + 1}. Put texts that have quotes into quotes, and write these twice"
            ) from None


def _mark(path: Path) -> str:
    return "\t" if form(path) == "tsv" else ","


def _with(path: Path, read: Callable[[Any], Any], most: int | None = None) -> Any:
    """Raises CorruptDataError. `most`: bytes that are unpacked of a packed file.

    pyarrow opens the file by itself: a thread of its own that asks Python for bytes ends the process where Python
    ends first.
    """
    if path.suffix.lower() == ".gz":
        data = unpacked(path, most)
        _check_encoding(path, data[:2])
        return _guarded(str(path), lambda: read(import_module("pyarrow").BufferReader(data)))
    with open_data(path) as file, import_module("pyarrow").OSFile(f"/dev/fd/{file.fileno()}") as opened:
        _check_encoding(path, os.pread(file.fileno(), 2, 0))
        return _guarded(str(path), lambda: read(opened))


def _check_encoding(path: Path, start: bytes) -> None:
    """Raises CorruptDataError for UTF-16, as spreadsheets save it. `start`: the first two bytes."""
    if start in (BOM_UTF16_LE, BOM_UTF16_BE):
        raise CorruptDataError(f"{path} cannot be read: it is UTF-16. Save the file as UTF-8")


def _guarded(what: str, read: Callable[[], Any]) -> Any:
    """Raises CorruptDataError."""
    errors: Any = import_module("pyarrow").ArrowException
    try:
        return read()
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{what} cannot be read: the names of its columns are not UTF-8") from error
    except (errors, OSError) as error:
        text = re.sub(r", in pyarrow\..*", "", " ".join(str(error).split()))[:300]  # where in its own code
        if "straddles two block boundaries" in text:
            text = "a quote is not closed, or a cell is longer than 1 MiB"
        if "utf8" in text.lower():
            text = "a text is not UTF-8. Save the file as UTF-8"
        raise CorruptDataError(f"{what} cannot be read: {text}") from error


def arrow_module(module: str) -> Any:
    return import_module(f"pyarrow.{module}")  # a third of a second: only where it is needed


def value_type(found: Any) -> Any:
    return found.value_type if import_module("pyarrow").types.is_dictionary(found) else found


def in_words(kind: Any) -> str:
    """Returns the name of a type, of which nested lists and structs with many fields have a long one."""
    return shorten(str(kind), 100, placeholder=" ...")


def inexact(path: Path, name: str, number: object, row: int) -> CorruptDataError:
    return CorruptDataError(
        f"{path}: column {name} is {number} in row {row} (from 0 on), which float64 cannot hold. Leave the column out, "
        "or write labels with a letter and measurements with an exponent"
    )
