"""Random tokens: the same whatever the order and the number of samples that are read; refused only by a real run."""

import pytest
import torch

from paceline import engine
from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.engine import plan
from paceline.tasks.data.tokens import Tokens

MASK = 2**64 - 1


def mixed(x: int) -> int:
    """SplitMix64 in whole numbers."""
    x = (x + 1) * 0x9E3779B97F4A7C15 & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def test_tokens_are_the_hash_of_their_place_and_targets_the_next_ones() -> None:
    train, test = Tokens(samples=20, context=3, vocabulary=7, seed=5).load()
    expected = [[mixed(mixed(5) + 4 * i + j & MASK) % 7 for j in range(4)] for i in range(22)]
    taken = train.take(torch.tensor([19, 0]))
    assert lone(taken.inputs).tolist() == [expected[19][:3], expected[0][:3]]
    assert taken.targets.tolist() == [expected[19][1:], expected[0][1:]]
    assert lone(test.take(slice(0, 2)).inputs).tolist() == [row[:3] for row in expected[20:]]
    assert lone(taken.inputs).dtype == taken.targets.dtype == torch.int64


def test_all_tokens_are_about_as_frequent() -> None:
    train, _ = Tokens(samples=1000, context=100, vocabulary=10).load()
    counts = torch.bincount(lone(train.take(slice(None)).inputs).flatten(), minlength=10)
    assert counts.min() > 9_600 and counts.max() < 10_400  # 4 standard deviations of a binomial


def test_the_spec_tells_sizes_and_the_vocabulary() -> None:
    data = Tokens(samples=5, context=8, vocabulary=300)
    assert (data.spec.train_size, data.spec.test_size, data.spec.classes) == (5, 1, 300)
    assert [len(split) for split in data.load()] == [5, 1]


def test_a_plan_of_many_replicas_needs_no_text() -> None:
    many = ["model=gpt", "model.width=32", "model.n_head=2", "model.n_layer=1", "hardware=h100_8", "hardware.hosts=128"]
    assert plan([*many, "data=tokens", "data.context=16", "data.vocabulary=300"]).layout.replicas == 1024
    with pytest.raises(ConfigError, match=r"1024 replicas, and data=text has .* Choose .*data=tokens"):
        plan([*many, "data=text", "data.context=512"])


@pytest.mark.parametrize("model", ["gpt_100m", "gpt_1b"])
def test_the_larger_presets_of_gpt_take_random_tokens_as_they_are(model: str) -> None:
    experiment = engine.prepare([f"model={model}", "data=tokens"]).experiment
    assert experiment.model.knobs["vocabulary"] == experiment.data.knobs["vocabulary"]
