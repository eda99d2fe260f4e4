"""Fashion-MNIST: grey images of clothes, 28x28, 10 classes, 60,000 for training and 10,000 for test.

Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms",
2017, arXiv:1708.07747.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from ...conf.errors import ConfigError
from ..base import Data, DataSpec, Split, at_most
from ..errors import CorruptDataError, MissingDataError
from .download import download as download_file
from .files import asked
from .idx import check_sum, parse_idx, read_shape, read_whole

MEAN, STD = 0.2860, 0.3530  # of the training pixels, scaled to [0, 1]
CLASSES, SIDE = 10, 28
TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
SHA256 = {  # of the unpacked files: packers differ
    TRAIN_IMAGES: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    TRAIN_LABELS: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    TEST_IMAGES: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    TEST_LABELS: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
SYSTEM_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # Debian's package dataset-fashion-mnist
URLS = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
)


class FashionMNIST(Data):
    """Inputs [1, 28, 28] float32, standardised by the training pixels' mean and deviation.

    `root`: a folder with the four idx files, .gz or not; only it is looked at, and its content may be the user's own
    (28x28, 10 classes). Without it: Debian's package, then the cache folder, both checked by SHA-256.
    `download`: fetch what is missing from `urls` into the cache folder. `limit`: take the first so many training
    samples. Raises ConfigError for both `root` and `download`.
    """

    def __init__(
        self,
        root: str | None = None,
        download: bool = False,
        urls: Sequence[str] = URLS,
        limit: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        if root is not None and download:
            raise ConfigError("data.root and data.download=true exclude each other: set one of them.")
        self.root = asked(root, "root")
        self.download = download
        self.urls = urls
        self.limit = limit

    @property
    def spec(self) -> DataSpec:
        train, test = 60_000, 10_000
        if self.root is not None:
            train = test = None
            if _complete(self.root):
                train, test = (read_shape(_path(self.root, name), 1)[0] for name in (TRAIN_LABELS, TEST_LABELS))
        train = None if train is None else at_most(train, self.limit)
        black, white = standardised(torch.tensor([0.0, 255.0], device="cpu")).tolist()  # to the bit as pixels are
        return DataSpec((1, SIDE, SIDE), torch.float32, (), CLASSES, train, test, range=(black, white))

    def check_files(self) -> None:
        if self.root is not None and not _complete(self.root):
            raise MissingDataError(f"{self.root} lacks the four idx files. {self.how_to_get()}")

    def load(self) -> tuple[Split, Split]:
        if self.download and self.found() is None:
            for name, expected in SHA256.items():
                if not _path(cache_folder(), name).is_file():
                    download_file(f"{name}.gz", cache_folder(), self.urls, expected)
        self.check_files()
        folder = self.found()
        if folder is None:
            raise MissingDataError(f"Fashion-MNIST is not here. {self.how_to_get()}")
        return (
            self._split(Path(folder), TRAIN_IMAGES, TRAIN_LABELS, self.limit),
            self._split(Path(folder), TEST_IMAGES, TEST_LABELS, None),
        )

    def how_to_get(self) -> str:
        return (
            "Either apt-get install dataset-fashion-mnist, or set data.root to a folder with its four idx files, "
            "or set data.download=true."
        )

    def found(self) -> str | None:
        if self.root is not None:
            return str(self.root) if _complete(self.root) else None
        folders = (SYSTEM_FOLDER, cache_folder())
        return next((str(folder) for folder in folders if all(_path(folder, name).is_file() for name in SHA256)), None)

    def files(self) -> tuple[Path, ...]:
        """Returns the files of a user. All others are held to their known checksums whenever they are loaded."""
        return () if self.root is None else tuple(_path(self.root, name) for name in SHA256)

    def _split(self, folder: Path, images_name: str, labels_name: str, limit: int | None) -> Split:
        contents = []
        for name, dimensions in ((images_name, 3), (labels_name, 1)):
            path = _path(folder, name)
            content = read_whole(path, dimensions)
            if self.root is None:
                check_sum(path, content, SHA256[name])
            contents.append(parse_idx(path, content, dimensions))
        images, labels = contents  # uint8 [n, 28, 28], [n]
        if images.shape != (len(labels), SIDE, SIDE) or len(labels) == 0:
            raise CorruptDataError(
                f"{_path(folder, images_name)} has the shape {list(images.shape)}; "
                f"its {len(labels)} labels need [{len(labels)}, {SIDE}, {SIDE}], at least one."
            )
        if labels.max() >= CLASSES:
            raise CorruptDataError(
                f"{_path(folder, labels_name)} has a label {labels.max()}; the last is {CLASSES - 1}."
            )
        inputs = torch.from_numpy(images[:limit].astype("float32")).unsqueeze(1)
        return Split(standardised(inputs), torch.from_numpy(labels[:limit].astype("int64")))


def standardised(pixels: Tensor) -> Tensor:
    """Standardises pixels from 0 to 255, in place."""
    return pixels.div_(255).sub_(MEAN).div_(STD)


def cache_folder() -> Path:
    """Returns the folder of downloads: $XDG_CACHE_HOME/paceline/fashion_mnist, ~/.cache for an unset or relative
    variable.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "paceline" / "fashion_mnist"


def _path(folder: Path, name: str) -> Path:
    """The plain file where there is one, else the gzipped one. What is no file at all is refused when it is read."""
    return folder / name if (folder / name).exists() else folder / f"{name}.gz"


def _complete(folder: Path) -> bool:
    """Returns whether a user's folder has all the names. A name that is no file is refused when it is read."""
    return all(_path(folder, name).exists() for name in SHA256)
