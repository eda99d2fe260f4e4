"""A folder of images of your own, a folder for each class: `path/cat/1.png`. They are read when they are wanted.

Pillow reads them: pip install 'paceline[images]'. It is asked for `FORMATS` alone, whatever a file's content
says it is, and decodes no more pixels than are wanted.
"""

import math
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from ...conf.errors import ConfigError
from ..base import Data, DataSpec, Described
from ..contents import told_first
from ..errors import MissingDataError, SampleError
from ..items import Items
from .files import asked, folder_of, not_regular, open_data
from .parts import are_one, check_there, fifth, sizes

FORMATS = {  # of Pillow, each with all suffixes by which Pillow knows it
    "PNG": (".png", ".apng"),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm", ".pfm"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
SUFFIXES = frozenset(suffix for suffixes in FORMATS.values() for suffix in suffixes)
CHANNELS = {"RGB": 3, "L": 1}
MOST_PIXELS = 1 << 24  # of an image that is taken as it is: 201 MB of float32 in three channels
MOST_RESIZED = 1 << 26  # of one that is resized; a large camera has as many
OF_SYSTEMS = frozenset(  # folders of thumbnails, bins and the like, which network storages and systems keep
    {
        *("@eaDir", "@Recycle", "#recycle", "#snapshot"),
        *("$RECYCLE.BIN", "System Volume Information", "__MACOSX", "lost+found"),
    }
)
OPAQUE = 255  # of an alpha channel
BITS_PER_SAMPLE, PHOTOMETRIC, WHITE_IS_ZERO = 258, 262, 0  # tags of TIFF, and a value of the second
SAMPLE_FORMAT, SIGNED = 339, 2  # another tag, and its value for whole numbers with a sign
# Forms of a PNG whose pixels Pillow brings to 8 bits, but not the number of the colour that is transparent
SCALED = ("L;2", "L;4", "RGB;16B")
ONE_SIZE = "All must have the size of the first, or data.size resizes them"
TRANSPARENT = "is transparent in places, and has no background. Save it without transparency"


class Images(Data):
    """[channels, height, width] float32 from 0 to 1; the classes are the folders in the order of their names.

    `size`: [height, width] to which each is resized; null: all are of the size of the first. A fixed fifth is for test,
    unless there is a `test_path` with folders of the same names.
    """

    reader = "PIL"

    def __init__(
        self,
        path: str | None = None,
        test_path: str | None = None,
        size: tuple[Annotated[int, Ge(1)], Annotated[int, Ge(1)]] | None = None,
        mode: Literal["RGB", "L"] = "RGB",
        limit: Annotated[int, Ge(1)] | None = None,
        loader_workers: Annotated[int, Ge(0)] = 0,
    ) -> None:
        self.path, self.test_path = asked(path), asked(test_path, "test_path")
        self.size: tuple[int, int] | None = None if size is None else (size[0], size[1])
        self.mode, self.limit, self.loader_workers = mode, limit, loader_workers

    @cached_property
    def spec(self) -> DataSpec:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Lists the folders, and opens one image."""
        check_there("data.path=photos", self.how_to_get(), self.path, self.test_path)
        if folder_of("PIL") is None:
            raise MissingDataError(
                "data=images: Pillow, which reads them, is not installed: pip install 'paceline[images]'"
            )
        found, *held = self._listings()
        height, width = self.size or _opened(found.files[0], self.mode, None, MOST_PIXELS).shape[-2:]
        train, test = sizes(len(found.files), len(held[0].files) if held else None, self.limit)
        return DataSpec(
            (CHANNELS[self.mode], height, width), torch.float32, (), len(found.classes), train, test, range=(0.0, 1.0)
        )

    def load(self) -> tuple[Items, Items]:
        spec, (found, *held) = self.spec, self._listings()
        train = self._items(found, spec, f"{self.path}, train split")
        if held:
            test = self._items(held[0], spec, f"{self.test_path}, test split")
            return _shuffled(train, len(train)).first(self.limit), test
        first, second = fifth(len(found.files), f"data.path={self.path}")
        test = self._items(found, spec, f"{self.path}, test split")
        return train.rows(first).first(self.limit), test.rows(second)

    def _items(self, found: "_Listing", spec: DataSpec, what: str) -> Items:
        source = _Files(found.files, found.labels, self.mode, self.size, spec.input_shape[1:])
        return Items(source, spec, what, found.labels)

    def described(self) -> Described:
        found = self._listings()
        return Described(
            classes=tuple(found[0].classes),
            left_out=tuple(name for each in found for name in each.left_out),
            is_tested_on_training=are_one(self.path, self.test_path),
        )

    def how_to_get(self) -> str:
        return "Set data.path to a folder with a folder of images for each class."

    def found(self) -> str | None:
        return None if self.path is None or not self.path.is_dir() else str(self.path)

    def files(self) -> tuple[Path, ...]:
        return tuple(file for found in self._listings() for file in found.files)

    def _listings(self) -> list["_Listing"]:
        """Lists `path`, then maybe `test_path`. Raises ConfigError where their classes differ, and as `_listed`."""
        found = [_listed(path) for path in (self.path, self.test_path) if path is not None]
        if len(found) < 2 or found[0].classes == found[1].classes:
            return found
        ours, theirs = (set(each.classes) for each in found)
        apart = {"lacks": sorted(ours - theirs), "has": sorted(theirs - ours)}
        told = ", and ".join(f"{verb} {', '.join(told_first(names))}" for verb, names in apart.items() if names)
        raise ConfigError(f"data.test_path={self.test_path}: must have the folders of data.path={self.path}. It {told}")


@dataclass(frozen=True)
class _Listing:
    classes: list[str]
    files: list[Path]
    labels: Tensor  # of each file
    left_out: list[str]  # files that are no images by their suffix, or are in no class


def _listed(path: Path) -> _Listing:
    """Raises ConfigError or MissingDataError."""
    if not path.is_dir():
        raise ConfigError(f"{path}: must be a folder with a folder of images for each class")
    entries = _entries(path)
    folders = [entry for entry, is_folder in entries if is_folder]
    seen: dict[Path, Path] = {}
    inside = [_files_in(folder, seen) for folder in folders]
    found = [[file for file in files if _is_image(file)] for files in inside]
    empty = [folder.name for folder, files in zip(folders, found, strict=True) if not files]
    if len(folders) < 2 or empty:
        what = f"no images in {', '.join(empty)}" if empty else f"{len(folders)} folders"
        raise ConfigError(f"{path} has {what}; must have a folder with images for each of two or more classes")
    left_out = [entry for entry, is_folder in entries if not is_folder]
    left_out += [file for files in inside for file in files if not _is_image(file)]
    return _Listing(
        [folder.name for folder in folders],
        [file for files in found for file in files],
        torch.cat([torch.full((len(files),), label) for label, files in enumerate(found)]),
        [str(file.relative_to(path)) for file in left_out],
    )


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES


def _files_in(folder: Path, seen: dict[Path, Path]) -> list[Path]:
    """Returns all files in a folder, its folders and those that it links to. `seen`: folders by their real paths.

    Raises ConfigError for a folder that was seen: its images would be read twice, or without an end.
    """
    real = Path(os.path.realpath(folder))
    if real in seen:
        raise ConfigError(f"{folder}: is the folder {seen[real]}, which is read already. Remove the link")
    seen[real] = folder
    found = ([entry] if not is_folder else _files_in(entry, seen) for entry, is_folder in _entries(folder))
    return [file for files in found for file in files]


def _entries(folder: Path) -> list[tuple[Path, bool]]:
    """Returns files and folders by their names, and whether each is a folder. Raises MissingDataError, and ConfigError
    for a pipe and the like.

    Hidden ones and those of systems are left out: editors, notebooks and network storages keep copies in them.
    """
    try:
        with os.scandir(folder) as found:
            shown = [entry for entry in found if not entry.name.startswith(".") and entry.name not in OF_SYSTEMS]
            entries = [(entry.name, entry.is_dir()) for entry in shown]
            odd = [Path(each.path) for each in shown if not (each.is_dir() or each.is_file())]
    except OSError as error:
        raise MissingDataError(f"{error.filename or folder} cannot be read: {error.strerror}.") from error
    if odd:
        first = min(odd)
        if first.exists():
            raise not_regular(first)
        raise MissingDataError(f"{first} is a link to {first.readlink()}, which is not there. Mend it or remove it.")
    return [(folder / name, is_folder) for name, is_folder in sorted(entries)]


class _Files:
    """`size` is the one to which images are resized; `shape`, the height and width that each must have."""

    def __init__(
        self, files: list[Path], labels: Tensor, mode: str, size: tuple[int, int] | None, shape: tuple[int, ...]
    ) -> None:
        self._files, self._labels, self._mode, self._size, self._shape = files, labels, mode, size, shape

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        file, most = self._files[number], MOST_RESIZED if self._size is not None else 4 * math.prod(self._shape)
        read = _opened(file, self._mode, self._size, most)
        if read.shape[-2:] != self._shape:
            found, first = (" x ".join(map(str, shape)) for shape in (read.shape[-2:], self._shape))
            raise ImageError(f"{file}: is of {found} pixels, and the first of {first}. {ONE_SIZE}")
        return read, self._labels[number]


class ImageError(SampleError):
    """An image cannot be read; the message begins with its file."""


def _opened(file: Path, mode: str, size: tuple[int, int] | None, most: int) -> Tensor:
    """[channels, height, width] from 0 to 1. Raises ImageError, and what `open_data` does."""
    with open_data(file) as opened:
        try:
            return _decoded(opened, mode, size, most)
        except Exception as error:  # Pillow's parsers raise whatever Python raises on what they are given
            text = " ".join(str(error).split())[:500] or type(error).__name__
            if type(error).__name__ == "UnidentifiedImageError":  # its text names an object of Python's
                text = f"is no image of {', '.join(FORMATS)}, or is cut short"
            raise ImageError(f"{file}: {text}") from error


def _decoded(opened: BinaryIO, mode: str, size: tuple[int, int] | None, most: int) -> Tensor:
    image: Any = import_module("PIL.Image")
    with image.open(opened, formats=tuple(FORMATS)) as picture:
        width, height = picture.size  # of its head: nothing is decoded yet
        if width * height > most:
            hint = "" if size else f". {ONE_SIZE}"
            raise ValueError(f"is of {height:,} x {width:,} pixels; the most is {most:,}{hint}")
        if picture.format != "MPO" and getattr(picture, "is_animated", False):  # MPO: a photograph, then its previews
            raise ValueError("has several frames or pages, and an image is one. Save each in a file of its own")
        signed = picture.format == "TIFF" and SIGNED in picture.tag_v2.get(SAMPLE_FORMAT, ())
        if picture.mode == "F" or (picture.mode == "I" and picture.format != "PPM") or signed:
            kind = "floating-point numbers" if picture.mode == "F" else "whole numbers of 32 bits or with a sign"
            raise ValueError(f"holds {kind}, which have no white; save it with 8 or 16 bits, or use data=arrays")
        if picture.info.get("transparency") is not None and picture.tile[0][3] in SCALED:
            raise ValueError(TRANSPARENT)
        _turn_upright(picture)
        if picture.mode == "I" or picture.mode.startswith("I;16"):  # Pillow's `convert` would make 255 of most of them
            if (np.asarray(picture) == picture.info.get("transparency", -1)).any():
                raise ValueError(TRANSPARENT)
            grey = _grey(picture)
            if size is not None:
                grey = np.asarray(image.fromarray(grey).resize((size[1], size[0]))).clip(0, 1)
            return torch.from_numpy(np.array(grey)).expand(CHANNELS[mode], -1, -1).contiguous()
        whole = picture.convert("RGBA") if picture.has_transparency_data else picture
        if whole is not picture and whole.getchannel("A").getextrema()[0] < OPAQUE:
            raise ValueError(TRANSPARENT)
        wanted = (whole.convert("RGB") if whole.mode == "LAB" else whole).convert(
            mode
        )  # Pillow has no way from LAB to L
        pixels = torch.from_numpy(np.array(wanted if size is None else wanted.resize((size[1], size[0])))).float() / 255
    return pixels.unsqueeze(0) if pixels.dim() == 2 else pixels.permute(2, 0, 1).contiguous()


def _turn_upright(picture: Any) -> None:
    """Turns a photograph in place as its EXIF orientation says. Damaged EXIF data says nothing.

    Pillow does so for TIFF alone.
    """
    picture.load()
    with suppress(Exception):  # Pillow's EXIF parser raises whatever Python raises
        import_module("PIL.ImageOps").exif_transpose(picture, in_place=True)


def _grey(picture: Any) -> np.ndarray:
    """Returns the values of an image of 9 to 16 bits from 0 (black) to 1 (white).

    Pillow scales those of PPM to 16 bits. Of TIFF it gives the numbers in the file, whatever their bits and sense are.
    """
    tags = picture.tag_v2 if picture.format == "TIFF" else {}
    values = np.asarray(picture, dtype=np.float32) / (2 ** tags.get(BITS_PER_SAMPLE, (16,))[0] - 1)
    return 1 - values if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO else values


def _shuffled(items: Items, size: int) -> Items:
    """Shuffles the items, so that the first so many are of all classes."""
    return items.rows(torch.from_numpy(np.random.default_rng(0).permutation(size)))
