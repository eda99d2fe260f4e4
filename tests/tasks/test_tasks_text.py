from pathlib import Path

import pytest
import torch
from torch import Tensor

from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.engine.base import memory
from paceline.tasks.data.text import Text, TextSplit
from paceline.tasks.errors import MissingDataError
from paceline.tasks.evaluation import evaluate
from paceline.tasks.losses.cross_entropy import CrossEntropy, cross_entropy
from paceline.tasks.models.gpt import GPT


def inputs_of(split: TextSplit) -> Tensor:
    return lone(split.take(slice(None)).inputs)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_bytes(bytes(range(200)) + bytes(range(25)))
    return path


def test_windows_do_not_overlap_and_targets_are_the_next_bytes(text: Path) -> None:
    train, test = Text(str(text), context=4).load()
    content = text.read_bytes()
    # 203 for training: 50 windows and a next byte
    assert bytes(inputs_of(train).flatten().tolist()) == content[:200]
    assert bytes(train.targets.flatten().tolist()) == content[1:201]
    # The last tenth, 22 bytes, starts at 203: 5 windows and a next byte.
    assert bytes(inputs_of(test).flatten().tolist()) == content[203:223]
    assert bytes(test.targets.flatten().tolist()) == content[204:224]
    assert inputs_of(train).dtype == torch.int64 and inputs_of(train).shape == (50, 4)


@pytest.mark.parametrize("size", range(30, 75))
def test_the_spec_tells_the_sizes_without_loading(tmp_path: Path, size: int) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"x" * size)
    data = Text(str(path), context=2)
    train, test = data.load()
    assert (data.spec.train_size, data.spec.test_size) == (len(train), len(test))


@pytest.mark.parametrize("context", [1, 2, 3, 4])
def test_the_shortest_text_that_fits_gives_one_test_window(tmp_path: Path, context: int) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"x" * 10 * (context + 1))
    assert len(Text(str(path), context).load()[1]) == 1
    path.write_bytes(b"x" * (10 * (context + 1) - 1))
    for use in (lambda: Text(str(path), context).load(), lambda: Text(str(path), context).spec):
        with pytest.raises(ConfigError, match=f"data.context={context}") as caught:
            use()
        assert caught.value.exit_code == 2


def test_a_missing_file_is_told_by_its_name_and_leaves_the_sizes_open(tmp_path: Path) -> None:
    data = Text(str(tmp_path / "none"))
    assert data.found() is None
    assert (data.spec.train_size, data.spec.test_size, data.spec.classes) == (None, None, 256)
    for use in (data.check_files, data.load):
        with pytest.raises(MissingDataError, match=r"none is not a file.*data.path") as caught:
            use()
        assert caught.value.exit_code == 3
    with pytest.raises(MissingDataError, match=r"a cannot be read: File name too long\. Set data\.path"):
        Text("a" * 1000).check_files()
    with pytest.raises(ConfigError, match="is a directory, a pipe"):
        Text(str(tmp_path)).check_files()


def test_the_shipped_sample_is_plain_english() -> None:
    data = Text()
    train, test = data.load()
    assert bytes(inputs_of(train).flatten()[:38].tolist()).endswith(b"Call me Ishmael.")
    assert 100_000 < (len(train) + len(test)) * 64 < 200_000
    assert int(inputs_of(train).max()) < 128
    assert data.found() is not None


def test_a_limit_takes_the_first_windows(text: Path) -> None:
    data = Text(str(text), context=4, limit=3)
    train, test = data.load()
    assert data.spec.train_size == len(train) == 3 and len(test) == 5
    assert inputs_of(train).flatten().tolist() == list(range(12))


def test_a_text_takes_the_memory_of_its_file_and_not_of_int64(tmp_path: Path) -> None:
    path, size = tmp_path / "long", 2**26
    with path.open("wb") as file:
        file.truncate(size)
    before = memory.process_now()
    train, _ = Text(str(path), context=64).load()
    first = train.take(torch.tensor([0, len(train) - 1])).inputs
    assert lone(first).shape == (2, 64) and memory.process_now() - before < 3 * size


@pytest.mark.slow
def test_a_tiny_gpt_predicts_the_sample_better_than_byte_frequencies() -> None:
    torch.manual_seed(0)
    data = Text(context=32)
    train, test = data.load()
    model = GPT(data.spec, n_layer=1, n_head=2, width=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for picked in torch.randint(len(train), (150, 16)):
        optimizer.zero_grad()
        cross_entropy(model(inputs_of(train)[picked]), train.targets[picked]).backward()
        optimizer.step()
    shares = train.targets.flatten().bincount(minlength=256) / train.targets.numel()
    frequencies = -float((shares * shares.clamp_min(1e-12).log()).sum())
    assert evaluate(CrossEntropy(), model, test).loss < frequencies - 0.3
