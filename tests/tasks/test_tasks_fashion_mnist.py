import gzip
import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.client import HTTPMessage
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import NoReturn
from urllib.error import HTTPError

import numpy as np
import pytest
import torch
from needs import needs_fashion_mnist

from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.tasks.data import download, fashion_mnist
from paceline.tasks.data.fashion_mnist import SHA256, SYSTEM_FOLDER, FashionMNIST, cache_folder
from paceline.tasks.errors import CorruptDataError, MissingDataError

TRAIN, TEST = 7, 3
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


def contents() -> dict[str, bytes]:
    random = np.random.default_rng(0)
    files = {}
    for part, n in (("train", TRAIN), ("t10k", TEST)):
        files[f"{part}-images-idx3-ubyte"] = idx(random.integers(0, 256, (n, 28, 28), dtype=np.uint8))
        files[f"{part}-labels-idx1-ubyte"] = idx(random.integers(0, 10, n, dtype=np.uint8))
    return files


def write(folder: Path, files: dict[str, bytes], packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
    return folder


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither Debian's package nor a filled cache; the known sums are those of the small files."""
    monkeypatch.setattr(fashion_mnist, "SYSTEM_FOLDER", tmp_path / "system")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents().items()}
    monkeypatch.setattr(fashion_mnist, "SHA256", sums)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An address on this machine and the folder that it serves."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    folder = tmp_path / "served"
    folder.mkdir()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}", folder
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_idx_files_are_read_as_they_were_written(tmp_path: Path, packed: bool) -> None:
    files = contents()
    data = FashionMNIST(root=str(write(tmp_path / "mine", files, packed)))
    train, test = data.load()
    assert (data.spec.train_size, data.spec.test_size) == (len(train), len(test)) == (TRAIN, TEST)
    assert lone(train.samples).shape == (TRAIN, 1, 28, 28) and lone(train.samples).dtype == data.spec.input_dtype
    pixels = np.frombuffer(files[IMAGES][16:], np.uint8).reshape(TRAIN, 1, 28, 28).astype(np.float64)
    torch.testing.assert_close(lone(train.samples).double(), torch.from_numpy((pixels / 255 - 0.2860) / 0.3530))
    assert train.targets.tolist() == list(files[LABELS][8:])


def test_the_users_own_images_need_no_known_sum(tmp_path: Path) -> None:
    files = contents()
    files[IMAGES] = idx(np.zeros((TRAIN, 28, 28), np.uint8))
    train, _ = FashionMNIST(root=str(write(tmp_path / "mine", files))).load()
    assert lone(train.samples).max() == pytest.approx(-0.2860 / 0.3530)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (IMAGES, b"", "not an idx file"),
        (IMAGES, b"<html>no such page</html>", "not an idx file"),
        (IMAGES, contents()[LABELS], "not an idx file"),
        (IMAGES, contents()[IMAGES][:-1], "holds 5487 values; its header promises 5488"),
        (IMAGES, contents()[IMAGES] + b"x", "holds 5489 values"),
        (IMAGES, idx(np.zeros((TRAIN, 27, 28), np.uint8)), r"shape \[7, 27, 28\]"),
        (IMAGES, contents()["t10k-images-idx3-ubyte"], r"shape \[3, 28, 28\]; its 7 labels"),
        (LABELS, idx(np.full(TRAIN, 10, np.uint8)), "label 10; the last is 9"),
    ],
)
def test_a_wrong_file_is_corrupt_and_named(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    root = write(tmp_path / "mine", contents() | {name: content})
    with pytest.raises(CorruptDataError, match=says) as caught:
        FashionMNIST(root=str(root)).load()
    assert str(root / name) in str(caught.value)
    assert caught.value.exit_code == 7


def test_no_images_at_all_are_corrupt(tmp_path: Path) -> None:
    none = {IMAGES: idx(np.zeros((0, 28, 28), np.uint8)), LABELS: idx(np.zeros(0, np.uint8))}
    with pytest.raises(CorruptDataError, match="at least one"):
        FashionMNIST(root=str(write(tmp_path / "mine", contents() | none))).load()


@pytest.mark.parametrize("damage", [lambda b: b[:-20], lambda b: b"x" + b, lambda b: b[:40] + b"\0\xff" * 9 + b[58:]])
def test_a_damaged_gzip_file_is_corrupt_and_named(tmp_path: Path, damage) -> None:
    root = write(tmp_path / "mine", contents(), packed=True)
    path = root / f"{IMAGES}.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptDataError, match="not a whole gzip file") as caught:
        FashionMNIST(root=str(root)).load()
    assert str(path) in str(caught.value)


def test_an_explicit_root_without_the_files_does_not_fall_back_to_other_data(tmp_path: Path) -> None:
    write(tmp_path / "system", contents())
    root = write(tmp_path / "mine", {IMAGES: contents()[IMAGES]})
    data = FashionMNIST(root=str(root))
    assert data.found() is None and data.spec.train_size is None
    for use in (data.check_files, data.load):
        with pytest.raises(MissingDataError, match="mine lacks the four idx files") as caught:
            use()
        assert caught.value.exit_code == 3


def test_nothing_found_tells_the_three_ways_to_get_it() -> None:
    data = FashionMNIST()
    assert data.found() is None
    assert (data.spec.train_size, data.spec.test_size) == (60_000, 10_000)
    data.check_files()  # a plan needs none
    with pytest.raises(MissingDataError) as caught:
        data.load()
    for way in ("apt-get install dataset-fashion-mnist", "data.root", "data.download=true"):
        assert way in str(caught.value)


@pytest.mark.parametrize("where", ["system", "cache/paceline/fashion_mnist"])
def test_files_that_are_not_the_users_own_are_held_to_the_known_sums(tmp_path: Path, where: str) -> None:
    folder = write(tmp_path / where, contents(), packed=True)
    assert FashionMNIST().found() == str(folder)
    assert len(FashionMNIST().load()[0]) == TRAIN
    write(folder, {LABELS: idx(np.zeros(TRAIN, np.uint8))}, packed=True)
    with pytest.raises(CorruptDataError, match="SHA-256") as caught:
        FashionMNIST().load()
    assert f"{LABELS}.gz" in str(caught.value)


def test_the_systems_files_come_before_the_cache(tmp_path: Path) -> None:
    write(cache_folder(), contents())
    system = write(tmp_path / "system", contents())
    assert FashionMNIST().found() == str(system)


def test_root_and_download_together_are_bad_configuration() -> None:
    with pytest.raises(ConfigError, match=r"data\.root and data\.download") as caught:
        FashionMNIST(root="here", download=True)
    assert caught.value.exit_code == 2


def test_a_limit_takes_the_first_training_samples(tmp_path: Path) -> None:
    data = FashionMNIST(root=str(write(tmp_path / "mine", contents())), limit=2)
    train, test = data.load()
    assert data.spec.train_size == len(train) == 2 and len(test) == TEST
    assert train.targets.tolist() == list(contents()[LABELS][8:10])


def test_a_download_fills_the_cache_and_is_not_repeated(server: tuple[str, Path]) -> None:
    url, served = server
    write(served, contents(), packed=True)
    train, _ = FashionMNIST(download=True, urls=[url]).load()
    assert len(train) == TRAIN
    assert sorted(p.name for p in cache_folder().iterdir()) == sorted(f"{name}.gz" for name in contents())
    for path in served.iterdir():
        path.unlink()
    assert len(FashionMNIST(download=True, urls=[url]).load()[0]) == TRAIN
    assert FashionMNIST().found() == str(cache_folder())


def test_a_download_goes_on_to_the_next_address(server: tuple[str, Path]) -> None:
    url, served = server
    write(served / "right", contents(), packed=True)
    write(served / "wrong", contents() | {LABELS: b"another"}, packed=True)
    urls = [f"{url}/none", f"{url}/wrong", f"{url}/right/"]
    assert len(FashionMNIST(download=True, urls=urls).load()[0]) == TRAIN


def test_the_answer_of_a_server_that_refuses_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.14 warns of an error of HTTP that is left open."""
    answer = BytesIO()

    def refused(address: str, timeout: float) -> NoReturn:
        raise HTTPError(address, 404, "File not found", HTTPMessage(), answer)

    monkeypatch.setattr(download, "urlopen", refused)
    with pytest.raises(MissingDataError, match="404: File not found"):
        download.download("a.gz", tmp_path, ["http://localhost"], "")
    assert answer.closed


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.unlink(), "404"),
        (lambda path: path.write_bytes(b"<html>sign in</html>"), "gzip"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "end"),
        (lambda path: path.write_bytes(gzip.compress(b"another")), "SHA-256"),
    ],
    ids=["missing", "not gzip", "cut off", "other content"],
)
def test_a_failed_download_tells_address_and_reason_and_leaves_no_part_of_it(
    server: tuple[str, Path], damage, reason: str
) -> None:
    url, served = server
    write(served, contents(), packed=True)
    damage(served / f"{IMAGES}.gz")
    with pytest.raises(MissingDataError, match=reason) as caught:
        FashionMNIST(download=True, urls=[url]).load()
    assert f"{url}/{IMAGES}.gz" in str(caught.value)
    assert caught.value.exit_code == 3
    names = [path.name for path in cache_folder().iterdir()] if cache_folder().exists() else []
    assert f"{IMAGES}.gz" not in names and not [name for name in names if name.startswith(".")]


@pytest.mark.parametrize("urls", [[], ["no address"], ["http://127.0.0.1:1"]], ids=["none", "malformed", "refused"])
def test_an_address_that_cannot_be_reached_is_missing_data(urls: list[str]) -> None:
    with pytest.raises(MissingDataError, match="could not be downloaded"):
        FashionMNIST(download=True, urls=urls).load()


def test_a_cache_folder_that_cannot_be_written_is_told(server: tuple[str, Path], tmp_path: Path) -> None:
    url, served = server
    write(served, contents(), packed=True)
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(MissingDataError, match=r"could not be written: Not a directory"):
        FashionMNIST(download=True, urls=[url]).load()


def test_a_write_that_fails_leaves_no_temporary_file(server: tuple[str, Path]) -> None:
    url, served = server
    write(served, contents(), packed=True)
    (cache_folder() / f"{IMAGES}.gz").mkdir(parents=True)  # so that the last step, the renaming, fails
    with pytest.raises(MissingDataError, match="could not be written: Is a directory"):
        FashionMNIST(download=True, urls=[url]).load()
    assert [path.name for path in cache_folder().iterdir()] == [f"{IMAGES}.gz"]


def test_a_relative_cache_variable_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == tmp_path / ".cache" / "paceline" / "fashion_mnist"


@needs_fashion_mnist
def test_debians_package_has_the_known_sums_mean_and_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion_mnist, "SYSTEM_FOLDER", SYSTEM_FOLDER)
    monkeypatch.setattr(fashion_mnist, "SHA256", SHA256)
    train, test = FashionMNIST().load()
    assert (len(train), len(test)) == (FashionMNIST().spec.train_size, FashionMNIST().spec.test_size)
    assert float(lone(train.samples).mean()) == pytest.approx(0, abs=1e-3)
    assert float(lone(train.samples).std()) == pytest.approx(1, abs=1e-3)
    assert train.targets.bincount().tolist() == [6000] * 10
