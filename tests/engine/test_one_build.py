"""One worker of a host builds the model, and the others have the same tensors without a copy."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import built_once
import pytest
import torch
from safetensors.torch import load_file
from short_runs import HERE

from paceline import engine
from paceline.engine.fabrics.kinds import FabricKind
from paceline.engine.training import one_build
from paceline.testing.training import identical

MIB = 2**20
SHORT = ["tracking=none", "steps=6", "batch_size=16", "hardware.device=cpu", "hardware.threads=1"]

pytestmark = pytest.mark.dist


@pytest.fixture(autouse=True)
def lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_build, "LEAST", one_build.LEAST)  # a plan of the models lowers it in this process
    monkeypatch.setattr(sys, "path", [*sys.path, str(HERE)])


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    kept = all(one[key] == other[key] for key in ("trained", "tied"))
    return kept and identical(one["tensors"], other["tensors"]) and torch.equal(one["next"], other["next"])


def test_followers_have_the_leaders_tensors_ties_and_next_random_numbers(workers):
    alone, other = workers(2, built_once.build, {"once": False})
    assert (alone["built"], other["built"]) == (1, 1)
    told = workers(3, built_once.build, {})
    assert [each["built"] for each in told] == [1, 0, 0]
    assert all(same(each, alone) for each in told) and alone["tied"]
    assert [round(each["added"]) for each in told] == [1, 2, 3]
    assert [each["copied"] for each in told] == [[], [], []]


@pytest.mark.parametrize(
    "odd", ["list", *(pytest.param(odd, marks=pytest.mark.slow) for odd in ("generator", "hook", "later", "conjugate"))]
)
def test_a_model_with_hidden_state_is_built_by_every_worker(workers, odd):
    alone, _ = workers(2, built_once.build, {"once": False, "odd": odd})
    told = workers(2, built_once.build, {"odd": odd})
    assert [each["built"] for each in told] == [1, 1]
    assert all(same(each, alone) for each in told)


@pytest.mark.slow
def test_every_worker_builds_its_own_where_files_may_not_be_so_large(workers):
    alone, _ = workers(2, built_once.build, {"once": False})
    told = workers(2, built_once.build, {}, 1024)
    assert [each["built"] for each in told] == [1, 1]
    assert all(same(each, alone) for each in told)


def test_a_worker_asks_once_which_hosts_there_are():
    class Alone:
        size, rank, asked = 3, 1, 0

        @property
        def hosts(self) -> tuple[int, ...]:
            self.asked += 1
            return (0, 1, 2)

    comm: Any = Alone()
    parts: Any = SimpleNamespace(fabric=FabricKind())  # a worker that is alone on its host does not look at the model
    one_build.built(parts, comm, torch.nn.Identity)
    assert comm.asked == 1


@pytest.mark.slow  # three processes, as others here
def test_a_host_holds_one_model(workers):
    """The model has 64 MiB, in tensors so small that malloc keeps them when they are freed."""
    told = workers(3, built_once.build, {"width": 1024, "depth": 16})
    assert [each["built"] for each in told] == [1, 0, 0]
    assert all(each["grown"] < 32 * MIB for each in told)


@pytest.mark.slow
def test_a_leader_that_gives_no_sign_of_life_is_named(workers):
    _, said = workers(2, built_once.die_while_building, lost=[0], timeout=2.0)
    assert said.startswith("worker 1 waited 2 s for 'model/0' from worker 0")


@pytest.mark.parametrize(
    ("number", "overrides"),
    [
        pytest.param(2, ["sync=local_sgd"], marks=pytest.mark.slow),
        (3, ["sync=bsp"]),
        pytest.param(2, ["strategy=torch_fsdp"], marks=pytest.mark.slow),
    ],
)
@pytest.mark.budget(4)
def test_runs_are_the_same_bit_for_bit(fork_server, tmp_path: Path, number, overrides):
    def weights(once: bool) -> dict[str, torch.Tensor]:
        result = engine.run(
            [
                *SHORT,
                f"hardware.workers={number}",
                f"model={{_target_:built_once.Rich,once:{once}}}",
                *overrides,
            ],
            allow_modules=["built_once"],
            name=f"once-{once}",
            root=tmp_path,
            quiet=True,
        )
        assert result is not None
        logs = [path.read_text() for path in sorted((result.path / "logs").glob("worker-*.log"))]
        assert ["built for real" in log for log in logs] == [True] + [not once] * (number - 1)
        return load_file(result.path / "model.safetensors")

    assert identical(weights(True), weights(False))
