"""Workers begin with the same state and draw the same batches, or are told."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from scripts import joined, parts
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from paceline.comm import Comm
from paceline.conf.errors import ConfigError
from paceline.engine.base.errors import ChangedModelError
from paceline.testing.fabrics import run_virtual
from paceline.wrap import ScriptError, wrap
from paceline.wrap.alike import plain_of


class Unseeded(nn.Module):
    """Has buffers and a frozen layer that are another's on each worker."""

    proj: torch.Tensor

    def __init__(self, rank: int, width: int = 2) -> None:
        super().__init__()
        self.frozen, self.head = nn.Linear(2, width), nn.Linear(width, 2)
        self.frozen.requires_grad_(False)
        for name, value in (("proj", torch.eye(2)), ("seen", torch.tensor(3)), ("mask", torch.tensor([True, False]))):
            self.register_buffer(name, value)
        for each in [*self.parameters(), *self.buffers()]:
            each.data.copy_(each.data * rank)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.frozen(x @ self.proj))


class Drawn(Sampler[Any]):
    def __init__(self, *indices: Any) -> None:
        self.indices = indices

    def __iter__(self) -> Any:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


@pytest.fixture
def root(tmp_path: Any) -> str:
    return str(tmp_path / "runs")


def state(comm: Comm, root: str, *overrides: str, width: int = 2) -> dict[str, torch.Tensor]:
    model = Unseeded(comm.rank + 1, width + comm.rank * (width - 2))
    loader = DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2)
    joined(comm, root, model, torch.optim.SGD(model.parameters(), lr=0.1), loader, *overrides)
    return model.state_dict()


@pytest.mark.parametrize("overrides", [(), ("sync=gossip",)])
def test_replicas_begin_with_the_buffers_and_the_frozen_parameters_of_the_first(
    overrides: tuple[str, ...], root: str
) -> None:
    first, *others = run_virtual(3, state, root, *overrides)
    assert first["seen"] == 3 and first["mask"].tolist() == [True, False]
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)


def test_models_of_other_shapes_are_refused(root: str) -> None:
    def wider(comm: Comm, root: str) -> None:
        state(comm, root, width=3)

    with pytest.raises(ScriptError, match="wrap: workers have different models"):
        run_virtual(2, wider, root)


class Begun(nn.Sequential):
    """A depthwise convolution, whose weight is contiguous in two ways."""

    def __init__(self, *layers: nn.Module) -> None:
        convolution = cast(Any, nn.Conv2d(4, 4, 3, groups=4))
        super().__init__(convolution.to(memory_format=torch.channels_last), *layers)


def begun(comm: Comm, root: str, *layers: nn.Module) -> torch.Tensor:
    model: Any = Begun(*layers)
    model[0].weight.data.mul_(comm.rank + 1)
    loader = DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2)
    joined(comm, root, model, torch.optim.SGD(model[0].parameters(), lr=0.1), loader)
    return model[0].weight


def test_a_weight_that_is_contiguous_in_two_ways_is_shared(root: str) -> None:
    first, second = run_virtual(2, begun, root)
    assert torch.equal(first, second) and first.any()


class Counted(nn.Identity):
    def get_extra_state(self) -> dict[str, int]:
        return {"passes": 0}


REFUSED = {
    "1 is torch's SyncBatchNorm": nn.SyncBatchNorm(4),
    "1.weight has no shape yet. Pass one batch through the model before wrap": nn.LazyLinear(2),
    "parameter 1.weight is torch.complex64": nn.Linear(2, 2, dtype=torch.complex64),
    "its state has 1._extra_state of type dict": Counted(),
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_layer_that_workers_cannot_train_alike_is_refused(said: str, root: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run_virtual(2, begun, root, REFUSED[said])


@pytest.mark.parametrize("told", [(), ("sync=post_local_sgd",)])
def test_an_optimizer_of_sparse_gradients_is_refused_where_workers_step_with_their_mean(
    told: tuple[str, ...], root: str
) -> None:
    with pytest.raises(ConfigError, match=r"^optimizer=SparseAdam: .* 2 workers .* Choose Adam, or sync=local_sgd"):
        run_virtual(2, sparse, root, *told)
    assert run_virtual(2, sparse, root, "sync=local_sgd") == [2, 2]


def sparse(comm: Comm, root: str, *told: str) -> int:
    model = nn.EmbeddingBag(9, 2, sparse=True)
    loader = DataLoader(TensorDataset(torch.arange(8).view(4, 2)), batch_size=2)
    with joined(comm, root, model, torch.optim.SparseAdam(model.parameters()), loader, *told) as run:
        for (words,) in run.loader:
            comm.elapse(0.01)
            run.backward(run.model(words).square().mean())
            run.optimizer.step()
    return run.steps


def test_a_group_of_parameters_that_come_later_is_refused_where_state_is_sharded(root: str) -> None:
    def adds(comm: Comm, root: str) -> None:
        model, _, loader = parts()
        optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
        with joined(comm, root, model, optimizer, loader, "sync.shard=optimizer") as run:
            run.optimizer.add_param_group({"params": [model.embedding.weight]})
            for batch in run.loader:
                comm.elapse(0.01)
                run.backward(model(**batch).loss)
                run.optimizer.step()

    with pytest.raises(ChangedModelError, match=r"\[11, 8\] since step 0 .* give it to the optimizer before"):
        run_virtual(2, adds, root)


@pytest.mark.parametrize("told", [(), ("sync=local_sgd", "sync.period=2")])
@pytest.mark.parametrize("is_trained", [True, False])
def test_a_second_model_that_the_script_trains_apart_is_refused(
    is_trained: bool, told: tuple[str, ...], root: str
) -> None:
    def two(comm: Comm, root: str) -> None:
        model, optimizer, loader = parts()
        critic = torch.nn.Linear(2, 1).double()
        second = torch.optim.SGD(critic.parameters(), lr=0.1)
        with joined(comm, root, model, optimizer, loader, *told) as run:
            for batch in run.loader:
                comm.elapse(0.01)
                output = run.model(**batch)
                noise = torch.nn.Parameter(torch.full((1,), float(comm.rank)).double())  # a step's own
                run.backward(output.loss + noise.sum() + critic(output.logits).square().mean())
                run.optimizer.step()
                if is_trained:
                    second.step()

    if is_trained:
        with pytest.raises(ScriptError, match=r"lacks parameters .* of shapes \[1, 2\], \[1\]: .* after \d steps"):
            run_virtual(2, two, root)
    else:
        run_virtual(2, two, root)


def stranger(kind: str, comm: Comm) -> tuple[nn.Module | None, torch.optim.Optimizer | None]:
    """A second model that no loss of `run.backward` depends on, and its optimizer; or none on this worker."""
    torch.manual_seed(2)
    model = nn.Linear(2, 1).double()
    if kind == "on the chief" and comm.rank != 0:
        return None, None
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


@pytest.mark.parametrize("told", [(), ("sync=local_sgd", "sync.period=2")])
@pytest.mark.parametrize("kind", ["own samples", "before the step", "alike", "on the chief", "made anew"])
def test_a_second_model_without_a_part_in_the_loss_is_refused_if_workers_train_it_apart(
    kind: str, told: tuple[str, ...], root: str
) -> None:
    def two(comm: Comm, root: str) -> None:
        model, optimizer, loader = parts()
        other, second = stranger(kind, comm)
        with joined(comm, root, model, optimizer, loader, *told) as run:
            for batch in run.loader:
                comm.elapse(0.01)
                if kind == "made anew":
                    other, second = stranger(kind, comm)
                x = torch.full((1, 2), 1.0 if kind == "alike" else 1.0 + comm.rank).double()
                run.backward(run.model(**batch).loss)
                if kind != "before the step":
                    run.optimizer.step()
                if other is not None and second is not None:
                    second.zero_grad()
                    other(x).sum().backward()
                    second.step()
                if kind == "before the step":
                    run.optimizer.step()

    if kind in ("own samples", "before the step"):
        with pytest.raises(ScriptError, match=r"lacks parameters .* of shapes \[1, 2\], \[1\]: .* after \d steps"):
            run_virtual(2, two, root)
    else:
        run_virtual(2, two, root)


def drawn(comm: Comm, root: str, kind: str, late: int, size: int = 16) -> int:
    """Worker 1 draws two indices the other way round, from index `late` on."""
    order = [*range(size)]
    if comm.rank == 1:
        order[late], order[late + 1] = order[late + 1], order[late]
    made = {"numpy": np.int64, "tensor": torch.tensor, "int": int, "text": str}[kind]
    model, optimizer, _ = parts()
    data = {str(i): torch.ones(1) for i in range(size)} if kind == "text" else torch.ones(size, 1)
    with joined(comm, root, model, optimizer, DataLoader(data, batch_size=2, sampler=Drawn(*map(made, order)))) as run:  # type: ignore[arg-type]
        return sum(1 for _ in run.loader)


@pytest.mark.parametrize("kind", ["int", "numpy", "tensor", "text"])
@pytest.mark.parametrize("late", [0, 4, 14])
def test_different_orders_are_found_whatever_indices_are_and_wherever_they_differ(
    kind: str, late: int, root: str
) -> None:
    with pytest.raises(ScriptError, match="different orders"):
        run_virtual(2, drawn, root, kind, late)


def test_an_index_without_a_value_is_not_compared() -> None:
    assert plain_of(object()) == plain_of(object()) == "object"
    assert plain_of((1, np.int64(2), "a")) == plain_of((np.int64(1), torch.tensor(2), "a"))


def normed(comm: Comm, root: str, mode: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    model.train(mode == "train")
    loader = DataLoader(TensorDataset(torch.randn(16, 2, generator=torch.Generator().manual_seed(0))), batch_size=4)
    with joined(comm, root, model, torch.optim.SGD(model.parameters(), lr=0.1), loader) as run:
        for (x,) in run.loader:
            comm.elapse(0.01)
            run.backward(run.model(x).mean())
            run.optimizer.step()


@pytest.mark.parametrize(("workers", "mode", "times"), [(2, "train", 1), (2, "eval", 0), (1, "train", 0)])
def test_a_buffer_that_follows_a_workers_own_samples_is_told_once(
    workers: int, mode: str, times: int, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_virtual(workers, normed, root, mode)
    told = "note: buffer 1.running_mean of worker 1 differs from that of worker 0"
    assert capsys.readouterr().err.count(told) == times


def test_a_model_with_a_scripted_part_trains(tmp_path: Path) -> None:
    model, optimizer, loader = parts()
    model.add_module("head", torch.jit.script(model.head))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with wrap(model, optimizer, loader, name="mine", root=tmp_path) as run:
        run.backward(model(**next(iter(run.loader))).loss)
        run.optimizer.step()
