"""Overrides as W&B's agent writes them."""

import pytest

from paceline.cli.agent import from_agent


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("sync=asp", ["sync=asp"]),
        ("steps=None", ["steps=null"]),
        ("optimizer={'lr': 0.1, 'momentum': 0.9}", ["optimizer.lr=0.1", "optimizer.momentum=0.9"]),
        ("evaluate={'every': None}", ["evaluate.every=null"]),
        ("a={'b': {'c': 'd e', 'f': [1, 2]}, 'g': True}", ["a.b.c=d e", "a.b.f=[1, 2]", "a.g=True"]),
        ("model.hidden=[64, 32]", ["model.hidden=[64, 32]"]),
        ("hardware={workers:2}", ["hardware={workers:2}"]),
        ("a={'b': __import__('os')}", ["a={'b': __import__('os')}"]),
        ("a={'b'", ["a={'b'"]),
        ("a={'b'}", ["a={'b'}"]),
        pytest.param(deep := "a={'b': " + "-" * 9000 + "1}", [deep], id="deep"),
        ("no override", ["no override"]),
    ],
)
def test_pythons_values_become_hydras_under_an_agent(written, meant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_SWEEP_ID", raising=False)
    assert from_agent([written, "seed=1"]) == [written, "seed=1"]
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep1")
    assert from_agent([written, "seed=1"]) == [*meant, "seed=1"]


def test_a_nested_parameter_is_taken_under_an_agent_and_refused_elsewhere(paceline, monkeypatch) -> None:
    command = ["train", "--dry-run", "optimizer={'lr': 0.1}", "model.hidden=[16]"]
    monkeypatch.delenv("WANDB_SWEEP_ID", raising=False)
    assert paceline(*command).status == 2
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep1")
    assert paceline(*command).status == 0
