"""A folder of images of your own, a folder for each class: `path/cat/1.png`. They are read when they are wanted.

Pillow reads them: pip install 'paceline[images]'. It is asked for the formats of `SUFFIXES` alone, whatever a file's
content says it is, and decodes no more pixels than are wanted.
"""

from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from ..base import Data, DataSpec, Described
from ..errors import MissingDataError, SampleError, TaskConfigError
from ..items import Items
from .files import folder_of, open_data
from .parts import asked, check_there, fifth, sizes

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # those of SUFFIXES
CHANNELS = {"RGB": 3, "L": 1}
MOST_PIXELS = 1 << 24  # of an image that is taken as it is: 201 MB of float32 in three channels
MOST_RESIZED = 1 << 26  # of one that is resized; a large camera has as many
BITS_16 = 65535  # white, of 16 bits


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
        self.path, self.test_path = asked(path), asked(test_path)
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
        assert self.path is not None
        classes, files, _ = self._listed(self.path)
        height, width = self.size or _opened(files[0], self.mode, None, MOST_PIXELS).shape[-2:]
        held = None if self.test_path is None else len(self._listed(self.test_path)[1])
        train, test = sizes(len(files), held, self.limit)
        return DataSpec(
            (CHANNELS[self.mode], height, width), torch.float32, (), len(classes), train, test, range=(0.0, 1.0)
        )

    def load(self) -> tuple[Items, Items]:
        spec = self.spec
        assert self.path is not None
        classes, files, labels = self._listed(self.path)
        most = MOST_RESIZED if self.size is not None else 4 * spec.input_shape[1] * spec.input_shape[2]
        source = _Files(files, labels, self.mode, self.size, most)
        train, test = (Items(source, spec, f"{self.path}, {split} split", labels) for split in ("train", "test"))
        if self.test_path is None:
            first, second = fifth(len(files), f"data.path={self.path}")
            return train.rows(first).first(self.limit), test.rows(second)
        others, files, labels = self._listed(self.test_path)
        if others != classes:
            raise TaskConfigError(f"data.test_path={self.test_path}: has the folders {others}; data.path has {classes}")
        source = _Files(files, labels, self.mode, self.size, most)
        return _shuffled(train, len(train)).first(self.limit), Items(
            source, spec, f"{self.test_path}, test split", labels
        )

    def _listed(self, path: Path) -> tuple[list[str], list[Path], Tensor]:
        """The classes, the files, and the class of each. Raises TaskConfigError."""
        if not path.is_dir():
            raise TaskConfigError(f"{path}: must be a folder with a folder of images for each class")
        folders = sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))
        found = [_images_in(folder) for folder in folders]
        empty = [folder.name for folder, files in zip(folders, found, strict=True) if not files]
        if len(folders) < 2 or empty:
            what = f"no images in {', '.join(empty)}" if empty else f"{len(folders)} folders"
            raise TaskConfigError(f"{path} has {what}; must have a folder with images for each of two or more classes")
        labels = torch.cat([torch.full((len(files),), label) for label, files in enumerate(found)])
        return [folder.name for folder in folders], [file for files in found for file in files], labels

    def described(self) -> Described:
        assert self.path is not None
        return Described(classes=tuple(self._listed(self.path)[0]))

    def how_to_get(self) -> str:
        return "Set data.path to a folder with a folder of images for each class."

    def found(self) -> str | None:
        return None if self.path is None or not self.path.is_dir() else str(self.path)

    def files(self) -> tuple[Path, ...]:
        paths = [path for path in (self.path, self.test_path) if path is not None]
        return tuple(file for path in paths for file in self._listed(path)[1])


class _Files:
    def __init__(self, files: list[Path], labels: Tensor, mode: str, size: tuple[int, int] | None, most: int) -> None:
        self._files, self._labels, self._mode, self._size, self._most = files, labels, mode, size, most

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return _opened(self._files[number], self._mode, self._size, self._most), self._labels[number]


def _images_in(folder: Path) -> list[Path]:
    """Hidden files and folders are no samples: editors and notebooks keep copies in them."""
    files = (file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
    return sorted(file for file in files if not any(part.startswith(".") for part in file.relative_to(folder).parts))


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
    with image.open(opened, formats=FORMATS) as picture:
        width, height = picture.size  # of its head: nothing is decoded yet
        if width * height > most:
            hint = "" if size else ". All must have the size of the first, or data.size resizes them"
            raise ValueError(f"is of {height:,} x {width:,} pixels; the most is {most:,}{hint}")
        if picture.mode in ("I", "F") and picture.format != "PPM":
            kind = "floating-point numbers" if picture.mode == "F" else "whole numbers of 32 bits"
            raise ValueError(f"holds {kind}, which have no white; save it with 8 or 16 bits, or use data=arrays")
        if picture.mode == "I" or picture.mode.startswith("I;16"):  # Pillow's `convert` would make 255 of most of them
            grey = np.asarray(picture, dtype=np.float32) / BITS_16
            if size is not None:
                grey = np.asarray(image.fromarray(grey).resize((size[1], size[0]))).clip(0, 1)
            return torch.from_numpy(np.array(grey)).expand(CHANNELS[mode], -1, -1).contiguous()
        wanted = picture.convert(mode)
        pixels = torch.from_numpy(np.array(wanted if size is None else wanted.resize((size[1], size[0])))).float() / 255
    return pixels.unsqueeze(0) if pixels.dim() == 2 else pixels.permute(2, 0, 1).contiguous()


def _shuffled(items: Items, size: int) -> Items:
    """So that the first so many are of all classes."""
    return items.rows(torch.from_numpy(np.random.default_rng(0).permutation(size)))
