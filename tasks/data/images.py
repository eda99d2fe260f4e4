"""A folder of images of your own, a folder for each class: `path/cat/1.png`. They are read when they are wanted.

Pillow reads them: pip install 'paceline[images]'.
"""

from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from ..base import Data, DataSpec, Described
from ..errors import MissingDataError, TaskConfigError
from ..items import Items
from .files import folder_of, open_data
from .parts import asked, check_there, fifth, sizes

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp")
CHANNELS = {"RGB": 3, "L": 1}


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
        height, width = self.size or _opened(files[0], self.mode, None).shape[:2]
        held = None if self.test_path is None else len(self._listed(self.test_path)[1])
        train, test = sizes(len(files), held, self.limit)
        return DataSpec(
            (CHANNELS[self.mode], height, width), torch.float32, (), len(classes), train, test, range=(0.0, 1.0)
        )

    def load(self) -> tuple[Items, Items]:
        spec = self.spec
        assert self.path is not None
        classes, files, labels = self._listed(self.path)
        source = _Files(files, labels, self.mode, self.size)
        train, test = (Items(source, spec, f"{self.path}, {split} split", labels) for split in ("train", "test"))
        if self.test_path is None:
            first, second = fifth(len(files), f"data.path={self.path}")
            return train.rows(first).first(self.limit), test.rows(second)
        others, files, labels = self._listed(self.test_path)
        if others != classes:
            raise TaskConfigError(f"data.test_path={self.test_path}: has the folders {others}; data.path has {classes}")
        source = _Files(files, labels, self.mode, self.size)
        return _shuffled(train, len(train)).first(self.limit), Items(
            source, spec, f"{self.test_path}, test split", labels
        )

    def _listed(self, path: Path) -> tuple[list[str], list[Path], Tensor]:
        """The classes, the files, and the class of each. Raises TaskConfigError."""
        if not path.is_dir():
            raise TaskConfigError(f"{path}: must be a folder with a folder of images for each class")
        folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
        found = [sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES) for folder in folders]
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
    def __init__(self, files: list[Path], labels: Tensor, mode: str, size: tuple[int, int] | None) -> None:
        self._files, self._labels, self._mode, self._size = files, labels, mode, size

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        try:
            pixels = _opened(self._files[number], self._mode, self._size)  # [height, width] or [height, width, 3]
        except OSError as error:
            raise OSError(f"{self._files[number]}: {error}") from error
        rows = torch.from_numpy(pixels).float() / 255
        return (rows.unsqueeze(0) if rows.dim() == 2 else rows.permute(2, 0, 1).contiguous()), self._labels[number]


def _opened(file: Path, mode: str, size: tuple[int, int] | None) -> np.ndarray:
    image: Any = import_module("PIL.Image")
    with open_data(file) as opened, image.open(opened) as picture:
        wanted = picture.convert(mode)
        return np.array(wanted if size is None else wanted.resize((size[1], size[0])))


def _shuffled(items: Items, size: int) -> Items:
    """So that the first so many are of all classes."""
    return items.rows(torch.from_numpy(np.random.default_rng(0).permutation(size)))
