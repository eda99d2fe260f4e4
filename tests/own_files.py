"""A small file of a person's own for each choice of `data` that reads one, and what such a run is given."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

RNG = np.random.default_rng(0)


def arrays(folder: Path) -> list[str]:
    np.savez(folder / "arrays.npz", x=RNG.normal(size=(20, 3)), targets=np.arange(20) % 3)
    return [f"data.path={folder / 'arrays.npz'}"]


def table(folder: Path) -> list[str]:
    rows = [f"{i},{i * i},{i % 2}" for i in range(20)]
    (folder / "table.csv").write_text("\n".join(["a,b,target", *rows]))
    return [f"data.path={folder / 'table.csv'}"]


def images(folder: Path) -> list[str]:
    from PIL import Image

    for name in ("cat", "dog"):
        (folder / "images" / name).mkdir(parents=True)
        for i in range(5):
            Image.new("RGB", (8, 8)).save(folder / "images" / name / f"{i}.png")
    return [f"data.path={folder / 'images'}"]


def hugging_face(folder: Path) -> list[str]:
    import datasets

    data = datasets.Dataset.from_dict({"x": RNG.normal(size=(20, 3)).tolist(), "label": [i % 3 for i in range(20)]})
    data.save_to_disk(str(folder / "hugging_face"))
    return [f"data.path={folder / 'hugging_face'}"]


def svmlight(folder: Path) -> list[str]:
    (folder / "samples.svm").write_text("1 1:0.5 3:1\n-1 2:2\n" * 10)
    return [f"data.path={folder / 'samples.svm'}"]


OF_FILES = {"svmlight": svmlight, "arrays": arrays, "table": table, "images": images, "hugging_face": hugging_face}
NEEDS = {"table": "pyarrow", "hugging_face": "datasets"}


def documented(folder: Path) -> None:
    """The files that docs/own_data.md trains on."""
    header = "width,rooms,kind,price,rent"
    rows = [f"{i / 7},{i % 5},{('flat', 'house')[i % 2]},{i * 1.5},{i / 2 + 0.25}" for i in range(40)]
    (folder / "houses.csv").write_text("\n".join([header, *rows]))
    tags = RNG.random((40, 3)) < 0.3
    np.savez(folder / "samples.npz", x=RNG.normal(size=(40, 6)), targets=np.arange(40) % 3, tags=tags)
    images(folder)
    (folder / "images").rename(folder / "photos")
    if find_spec("datasets") is not None:
        hugging_face(folder)
        (folder / "hugging_face").rename(folder / "saved")
