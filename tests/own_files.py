"""A small file of a person's own for each choice of `data` that reads one, and what such a run is given."""

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


OF_FILES = {"arrays": arrays, "table": table, "images": images, "hugging_face": hugging_face}
NEEDS = {"table": "pyarrow", "hugging_face": "datasets"}
