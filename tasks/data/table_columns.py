"""Columns of a table as NumPy arrays, and what a row cannot be."""

import math
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ...conf.errors import ConfigError
from ..errors import CorruptDataError
from .table_files import arrow_module, form, in_words, inexact, value_type

LARGEST = float(np.finfo(np.float32).max)
_NOTHING = ("", "NA", "N/A", "NaN", "nan", "NULL", "null")


def column_of(table: Any, name: str, path: Path) -> np.ndarray:
    """Returns the values of a column. Raises CorruptDataError where there is nothing in a row."""
    column, types = table.column(name), import_module("pyarrow").types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_time64(column.type) and column.type.unit == "ns":  # Python's times have microseconds
        column = column.cast(import_module("pyarrow").string())
    empty = column.is_null(nan_is_null=True)
    if types.is_string(column.type) or types.is_large_string(column.type):
        compute = arrow_module("compute")
        empty = compute.or_kleene(empty, compute.equal(compute.utf8_trim_whitespace(column), ""))
    row = arrow_module("compute").index(empty, True).as_py()
    if row >= 0:
        raise _nothing_in(path, name, row)
    return column.to_numpy()


def numbers_of(table: Any, name: str, path: Path) -> np.ndarray:
    """Returns a column as float64. Raises ConfigError or CorruptDataError."""
    column = column_of(table, name, path)
    if column.dtype.kind not in "biuf":
        row, value = next(((i, each) for i, each in enumerate(column) if not _is_number(each)), (0, column[0]))
        if value in _NOTHING:
            raise _nothing_in(path, name, row)
        raise ConfigError(
            f"{path}: column {name} is {table.schema.field(name).type} ({value!r} in row {row}, from 0 on); must "
            "be numbers, or left out of data.inputs"
        )
    values = column.astype(np.float64)
    with np.errstate(invalid="ignore"):  # of 2^63, which float64 makes of 2^63 - 1
        rounded = (
            np.flatnonzero(values.astype(column.dtype) != column) if column.dtype.kind in "iu" else np.empty(0, int)
        )
    if len(rounded):
        raise inexact(path, name, column[rounded[0]], int(rounded[0]))
    strange = np.flatnonzero(~(np.abs(values) <= LARGEST))
    if len(strange) and not math.isfinite(values[strange[0]]):
        raise CorruptDataError(f"{path}: column {name} is infinite in row {strange[0]} (from 0 on)")
    if len(strange):
        raise CorruptDataError(
            f"{path}: column {name} is {values[strange[0]]:g} in row {strange[0]} (from 0 on), which float32 "
            "cannot hold. Scale it, or leave it out of data.inputs"
        )
    return values


def integers_of(table: Any, name: str, path: Path) -> np.ndarray:
    """Returns a column as int64. Raises ConfigError for fractions, and as `numbers_of`."""
    column = column_of(table, name, path)
    if column.dtype.kind not in "biu" or (column.dtype.kind == "u" and column.max() > np.iinfo(np.int64).max):
        raise ConfigError(
            f"data.integers: column {name} of {path} is {table.schema.field(name).type}; must be whole numbers "
            "that int64 can hold"
        )
    return column.astype(np.int64)


def check_label(field: Any, path: Path) -> None:
    """Raises ConfigError for a column that cannot be labels."""
    types, found = import_module("pyarrow").types, value_type(field.type)
    if types.is_binary(found) or types.is_large_binary(found) or types.is_fixed_size_binary(found):
        if form(path) != "parquet":
            raise ConfigError(f"data.targets={field.name}: is not UTF-8 in {path}. Save the file as UTF-8")
        raise _no_label(field, path, "text, numbers, or true and false. Cast it to strings")
    if types.is_nested(found):
        raise _no_label(field, path, "text, numbers, or true and false. data=hugging_face learns lists of labels")
    if types.is_decimal(found):
        raise _no_label(field, path, "text, whole numbers or floats. Cast it to strings for labels, or to float64")


def _no_label(field: Any, path: Path, wanted: str) -> ConfigError:
    return ConfigError(
        f"data.targets={field.name}: column {field.name} of {path} is {in_words(field.type)}; must be {wanted}"
    )


def _nothing_in(path: Path, name: str, row: int) -> CorruptDataError:
    first = "the first after the names is 0" if form(path) in ("csv", "tsv") else "the first is 0"
    return CorruptDataError(f"{path}: column {name} has nothing in row {row} ({first})")


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False
