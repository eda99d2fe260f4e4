"""Arrays in files: what is read of them is what NumPy and safetensors read, and what is wrong is said by name."""

import resource
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from torch import Tensor

from paceline.conf.errors import ConfigError
from paceline.tasks.checks import check_spec, load_checked
from paceline.tasks.data.arrays import Arrays
from paceline.tasks.data.mapped import arrays_of
from paceline.tasks.errors import CorruptDataError, MissingDataError, SampleError
from paceline.tasks.evaluation import evaluate
from paceline.tasks.losses.cross_entropy import CrossEntropy
from paceline.tasks.models.mlp import MLP

N = 23


def made() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(N, 3)),  # float64
        "image": rng.integers(256, size=(N, 2, 2), dtype=np.uint8),
        "street": rng.integers(8, size=N, dtype=np.int32),
        "targets": rng.integers(4, size=N).astype(np.int16) % 4,
        "price": rng.normal(size=(N, 2)).astype(np.float16),
        "mask": rng.random((N, 2)) < 0.5,
    }


def written(kind: str, folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    match kind:
        case "npz":
            np.savez(path := folder / "a.npz", **arrays)  # pyright: ignore[reportArgumentType]
        case "packed":
            np.savez_compressed(path := folder / "b.npz", **arrays)  # pyright: ignore[reportArgumentType]
        case "safetensors":
            safetensors.numpy.save_file(arrays, path := folder / "c.safetensors")
        case _:
            (path := folder / "d").mkdir()
            for name, array in arrays.items():
                np.save(path / f"{name}.npy", np.asfortranarray(array))
    return path


@pytest.mark.parametrize("kind", ["npz", "packed", "safetensors", "npy"])
def test_what_is_read_is_what_was_written(kind: str, tmp_path: Path) -> None:
    arrays = made()
    path = written(kind, tmp_path, arrays)
    for name, array in arrays_of(path).items():
        np.testing.assert_array_equal(array.read()(slice(None)).numpy(), arrays[name])
    data = Arrays(str(path), inputs=["x", "image", "street"])
    train, test = load_checked("arrays", data)
    assert (len(train), len(test)) == (19, 4) == (data.spec.train_size, data.spec.test_size)
    assert data.spec.inputs is not None and data.spec.classes == 4
    assert {key: field.dtype for key, field in data.spec.fields.items()} == {
        "x": torch.float32,
        "image": torch.float32,
        "street": torch.int64,
    }
    every = [split.take(slice(None)) for split in (train, test)]
    rows = np.concatenate([taken.inputs.tensors["x"].numpy() for taken in every])  # pyright: ignore
    order = [int(np.flatnonzero(np.all(np.isclose(arrays["x"], row), axis=1))[0]) for row in rows]
    assert sorted(order) == list(range(N))
    found = {key: torch.cat([taken.inputs.tensors[key] for taken in every]).numpy() for key in data.spec.fields}  # pyright: ignore
    np.testing.assert_allclose(found["image"], arrays["image"][order] / 255, rtol=1e-6)
    np.testing.assert_array_equal(found["street"], arrays["street"][order])
    np.testing.assert_array_equal(torch.cat([taken.targets for taken in every]).numpy(), arrays["targets"][order])
    some = torch.tensor([3, 0])
    assert torch.equal(train.take(some).targets, every[0].targets[some])


def test_hidden_files_of_a_folder_are_no_arrays(tmp_path: Path) -> None:
    path = written("npy", tmp_path, made())
    names = set(arrays_of(path))
    for name in ("._x.npy", ".old.npy"):
        (path / name).write_bytes(b"Mac OS X")
    assert set(arrays_of(path)) == names
    assert not any(file.name.startswith(".") for file in Arrays(str(path), inputs=["x", "image", "street"]).files())


def test_bytes_have_a_range_and_floating_numbers_the_one_that_is_said(tmp_path: Path) -> None:
    path = str(written("npz", tmp_path, made()))
    assert Arrays(path, inputs="image").spec.range == (0.0, 1.0) and Arrays(path, inputs="x").spec.range is None
    assert Arrays(path, inputs="x", range=(-4.0, 4.0)).spec.range == (-4.0, 4.0)
    with pytest.raises(ConfigError, match=r"data\.range=\[1\.0, 1\.0\]: the first must be below the second"):
        Arrays(path, inputs="x", range=(1.0, 1.0))


def test_numbers_and_a_mask_are_targets_too(tmp_path: Path) -> None:
    data = Arrays(str(written("npz", tmp_path, made())), inputs="x", targets="price", weights="mask", limit=7)
    train, test = load_checked("arrays", data)
    assert len(train) == 7 and len(test) == 4 and data.spec.inputs is None
    taken = train.take(torch.tensor([2]))
    assert taken.targets.dtype == torch.float32 and taken.targets.shape == (1, 2)
    assert taken.weights is not None and taken.weights.dtype == torch.bool and taken.weights.shape == (1, 2)


def test_bfloat16_of_safetensors_is_read(tmp_path: Path) -> None:
    x = torch.randn(N, 2).bfloat16()
    safetensors.torch.save_file({"x": x, "targets": torch.arange(N) % 3}, tmp_path / "x.safetensors")
    train, test = Arrays(str(tmp_path / "x.safetensors")).load()
    both = torch.cat([train.take(slice(None)).inputs, test.take(slice(None)).inputs])  # pyright: ignore
    assert sorted(both.tolist()) == sorted(x.float().tolist())


def test_a_file_of_another_name_is_the_test_set_and_must_be_like_the_first(tmp_path: Path) -> None:
    arrays = made()
    path = written("npz", tmp_path, arrays)
    np.savez(tmp_path / "t.npz", x=arrays["x"][:5], targets=arrays["targets"][:5])
    data = Arrays(str(path), str(tmp_path / "t.npz"), "x")
    train, test = load_checked("arrays", data)
    assert (len(train), len(test)) == (N, 5)
    np.savez(tmp_path / "t.npz", x=arrays["x"][:5, :2], targets=arrays["targets"][:5])
    with pytest.raises(ConfigError, match=r"x has \[2\] of float64 for each sample, and data\.path=.* has \[3\]"):
        Arrays(str(path), str(tmp_path / "t.npz"), "x").load()


def test_a_plan_and_a_batch_read_only_what_they_need(tmp_path: Path) -> None:
    """The array has 1 TiB of which a disk holds none."""
    (tmp_path / "huge").mkdir()
    rows = 2**30
    with (tmp_path / "huge" / "x.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, 256)})
        file.truncate(file.tell() + rows * 1024)
    with (tmp_path / "huge" / "targets.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (rows,)})
        file.truncate(file.tell() + rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = Arrays(str(tmp_path / "huge"), str(tmp_path / "huge"), classes=3)
    check_spec("arrays", data.spec)
    train, _ = load_checked("arrays", data)
    taken = train.take(torch.tensor([0, rows - 1, rows // 2]))
    assert taken.inputs.tolist() == [[0.0] * 256] * 3  # pyright: ignore[reportAttributeAccessIssue]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
    with pytest.raises(ConfigError, match=r"data\.classes=null: .* takes long to count; say how many"):
        _ = Arrays(str(tmp_path / "huge"), str(tmp_path / "huge")).spec


def test_whole_numbers_are_floating_where_a_model_takes_numbers(tmp_path: Path) -> None:
    """Else they are tokens, and what a model says of them names the way out."""
    for kind in (np.int8, np.int16, np.int32, np.int64, np.bool_):
        x = (np.arange(2 * N).reshape(N, 2) % 2).astype(kind)
        np.savez(tmp_path / "x.npz", x=x, targets=np.arange(N) % 2)
        with pytest.raises(ConfigError, match=r"takes floating numbers, .* are torch\..* Choose data\.floats=true"):
            MLP(Arrays(str(tmp_path / "x.npz")).spec)
        data = Arrays(str(tmp_path / "x.npz"), floats=True)
        taken = load_checked("arrays", data)[1].take(slice(None)).inputs
        assert isinstance(taken, Tensor) and taken.dtype == torch.float32 == data.spec.input_dtype
        assert MLP(data.spec)(taken).shape == (N // 5, 2)


@pytest.mark.parametrize("held", [True, False])
def test_weights_that_are_all_0_are_refused(held: bool, tmp_path: Path) -> None:
    for name, weights in (("a", np.zeros(N) if held else np.ones(N)), ("b", np.zeros(N))):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros((N, 2)), targets=np.arange(N) % 2, weights=weights)
    data = Arrays(str(tmp_path / "a.npz"), str(tmp_path / "b.npz"), weights="weights")
    said = rf"a {'train' if held else 'test'} split with weights that are all 0, so that nothing counts"
    with pytest.raises(ConfigError, match=said):
        load_checked("arrays", data)
    with pytest.raises(SampleError, match=f"an evaluation of {N} samples has weights that are all 0"):
        evaluate(CrossEntropy(), MLP(data.spec), data.load()[1])


# -- what is wrong


@pytest.mark.parametrize(
    ("changed", "knobs", "sentence"),
    [
        ({}, {"targets": "y"}, "data.targets=y: "),
        ({}, {"inputs": ["x", "z"]}, "data.inputs=z: "),
        ({}, {"weights": "w"}, "data.weights=w: "),
        ({}, {"weights": "street"}, "is of int32; must be floats or a mask"),
        ({"x": np.zeros((5, 3))}, {}, "arrays of several lengths"),
        ({"x": np.float32(3)}, {}, "has a single number in x; the first axis must be that of samples"),
        ({"x": np.array(["a"] * N)}, {}, "x is an array of <U1; must be of numbers"),
        ({"x": np.array([{}] * N)}, {}, "x is an array of object; must be of numbers (nothing is unpickled)"),
        ({name: array[:0] for name, array in made().items()}, {}, "has no samples"),
        ({name: array[:3] for name, array in made().items()}, {}, "of 3 samples, a fifth for test is none"),
    ],
)
def test_what_cannot_be_learnt_of_is_refused(
    changed: dict[str, Any], knobs: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", **{**made(), **changed})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError) as caught:
        load_checked("arrays", Arrays(str(tmp_path / "a.npz"), **knobs))
    assert sentence in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("price", np.nan, "sample 9: a target is NaN or infinite"),
        ("targets", -1, "sample 9: its label is -1; must be 0 or more"),
        ("weights", -1.0, "sample 9: its weight is negative or not finite"),
    ],
)
def test_a_sample_that_is_wrong_is_named_when_it_is_read(
    name: str, value: float, sentence: str, tmp_path: Path
) -> None:
    arrays = {**made(), "weights": np.ones(N)}
    arrays[name][9] = value
    np.savez(tmp_path / "a.npz", **arrays)  # pyright: ignore[reportArgumentType]
    targets = "price" if name == "price" else "targets"
    data = Arrays(str(tmp_path / "a.npz"), inputs="x", targets=targets, weights="weights")
    with pytest.raises(SampleError) as caught:
        for split in data.load():
            split.take(slice(None))
    assert sentence in str(caught.value)


def test_labels_that_are_whole_floating_numbers_are_counted(tmp_path: Path) -> None:
    labels = np.arange(N) % 3
    np.savez(tmp_path / "a.npz", x=np.ones((N, 2)), targets=labels.astype("f4"))
    data = Arrays(str(tmp_path / "a.npz"), kind="labels")
    assert data.spec.classes == 3 and load_checked("arrays", data)[0].take(slice(0, 3)).targets.dtype == torch.int64
    np.savez(tmp_path / "b.npz", x=np.ones((N, 2)), targets=np.where(labels == 2, 1.5, labels))
    with pytest.raises(SampleError, match=r"sample 2: its label is 1\.5; must be a whole number"):
        _ = Arrays(str(tmp_path / "b.npz"), kind="labels").spec


def test_numbers_of_safetensors_that_numpy_lacks_are_no_hindrance_where_nobody_asks_for_them(tmp_path: Path) -> None:
    tensors = {name: torch.from_numpy(made()[name]) for name in ("x", "targets")}
    small = {"a": torch.ones(N).to(torch.float8_e4m3fn), "z": torch.ones(N, dtype=torch.complex64)}
    safetensors.torch.save_file({**tensors, **small}, tmp_path / "a.safetensors")
    train, _ = Arrays(str(tmp_path / "a.safetensors"), inputs="x").load()
    assert len(train) == 19
    with pytest.raises(ConfigError, match=r"a is an array of .*; must be of numbers .* 'data\.inputs=\[x\]'"):
        _ = Arrays(str(tmp_path / "a.safetensors")).spec


@pytest.mark.parametrize("kind", ["npz", "packed", "npy"])
@pytest.mark.parametrize("value", ["a", {}], ids=["text", "objects"])
def test_an_array_that_is_no_numbers_is_no_hindrance_where_nobody_asks_for_it(
    kind: str, value: object, tmp_path: Path
) -> None:
    """Its bytes are not looked at, let alone unpickled."""
    arrays = {"x": made()["x"], "targets": made()["targets"]}
    path = str(written(kind, tmp_path, {**arrays, "names": np.array([value] * N)}))
    train, _ = Arrays(path, inputs="x").load()
    assert len(train) == 19
    with pytest.raises(ConfigError, match=r"names is an array of .*; must be of numbers .* 'data\.inputs=\[x\]'"):
        _ = Arrays(path).spec


def test_files_that_are_missing_or_damaged_are_named(tmp_path: Path) -> None:
    for path, error in ((None, ConfigError), (str(tmp_path / "none.npz"), MissingDataError)):
        with pytest.raises(error, match=r"Set data\.path to a \.npz or \.safetensors file"):
            _ = Arrays(path).spec
    (tmp_path / "x.csv").write_text("a,b")
    with pytest.raises(ConfigError, match=r"must be a \.npz or \.safetensors file, or a folder"):
        _ = Arrays(str(tmp_path / "x.csv")).spec
    for kind in ("npz", "safetensors"):
        path = written(kind, tmp_path, made())
        whole = path.read_bytes()
        for cut in (0, 3, 20, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:cut])
            with pytest.raises(CorruptDataError, match=path.name):
                _ = Arrays(str(path)).spec
    (tmp_path / "d").mkdir()
    np.save(tmp_path / "d" / "x.npy", made()["x"])
    (tmp_path / "d" / "targets.npy").write_bytes(b"\x93NUMPY\x01\x00")
    with pytest.raises(CorruptDataError, match="targets"):
        _ = Arrays(str(tmp_path / "d")).spec
    np.save(tmp_path / "d" / "targets.npy", made()["targets"])
    x = tmp_path / "d" / "x.npy"
    x.write_bytes(x.read_bytes()[:-1])
    with pytest.raises(CorruptDataError, match="x is cut short: its header says"):
        _ = Arrays(str(tmp_path / "d")).spec
    with zipfile.ZipFile(tmp_path / "e.npz", "w") as archive:
        archive.writestr("targets.npy", b"no array")
    with pytest.raises(CorruptDataError, match="targets is no array of NumPy"):
        _ = Arrays(str(tmp_path / "e.npz")).spec
