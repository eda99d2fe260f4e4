"""Whatever a script does to gradients between run.backward and run.optimizer.step counts, or is refused."""

from functools import partial
from typing import Any

import pytest
import torch
from scripts import Tagger, distance, identical, joined, parts, serially, train, weights_of
from torch import Tensor, nn

from paceline.comm import Comm
from paceline.conf.errors import ConfigError
from paceline.testing.fabrics import run_virtual
from paceline.wrap import ScriptError, wrap

EXACT = 1e-12  # float64: sums in another order


def clipped(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def clipped_by_value(model: nn.Module) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 1e-3)


def halved(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad.mul_(0.5)


def replaced(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = parameter.grad.sign()


def moved(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad.data = parameter.grad.data * 0.5  # other memory


def scaled_unseen(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad.data.mul_(0.5)  # the tensor's version stays


def decayed(model: nn.Module) -> None:
    for parameter in model.parameters():
        (gradient,) = torch.autograd.grad(parameter.square().sum(), [parameter])
        parameter.grad.add_(gradient, alpha=0.1)


def dropped(model: Tagger) -> None:
    model.norm.weight.grad = None


@pytest.fixture
def root(tmp_path: Any) -> str:
    return str(tmp_path / "runs")


@pytest.mark.parametrize(
    "change", [clipped, clipped_by_value, halved, replaced, moved, scaled_unseen, decayed, dropped]
)
def test_changed_gradients_are_those_of_the_whole_batch_on_any_number_of_workers(change: Any, root: str) -> None:
    serial = serially(change=change)
    assert distance(serial, serially()) > 1e-6
    assert identical(train(None, root, change=change)["weights"], serial)
    for result in run_virtual(3, partial(train, change=change), root + "3"):
        assert distance(result["weights"], serial) < EXACT


@pytest.mark.parametrize(
    "overrides",
    [("sync=bsp_naive",), ("sync.find_unused=true",), ("collective=ring",), ("sync=local_sgd", "sync.switch_step=100")],
)
def test_every_mode_that_steps_with_the_mean_counts_them(overrides: tuple[str, ...], root: str) -> None:
    for result in run_virtual(2, partial(train, change=clipped), root, *overrides):
        assert distance(result["weights"], serially(change=clipped)) < EXACT


def test_accumulated_gradients_are_changed_once_a_step(root: str) -> None:
    how: dict[str, Any] = {"accumulate": 2, "samples": 16, "change": clipped}
    assert distance(run_virtual(2, partial(train, **how), root)[0]["weights"], serially(**how)) < EXACT


def in_two_passes(comm: Comm | None, root: str, between: Any, *overrides: str) -> Any:
    """Calls `between` with the model amid each step. comm: None for plain torch."""
    model, optimizer, loader = parts(samples=16, shuffle=False)
    if comm is None:
        for i, batch in enumerate(loader):
            (model(**batch).loss / 2).backward()
            if i % 2 == 0:
                between(model)
            else:
                optimizer.step()
                optimizer.zero_grad()
        return weights_of(model)
    with joined(comm, root, model, optimizer, loader, *overrides) as run:
        for i, batch in enumerate(run.loader):
            comm.elapse(0.01)
            run.backward(run.model(**batch).loss / 2, last=i % 2 == 1)
            if i % 2 == 0:
                between(model)
            else:
                run.optimizer.step()
                run.optimizer.zero_grad()
    return weights_of(model)


def decays(model: nn.Module) -> None:
    torch.stack([(each**2).sum() for each in model.parameters()]).sum().backward()


def drops(model: nn.Module) -> None:
    model.zero_grad()


@pytest.mark.parametrize("between", [clipped, halved, replaced, scaled_unseen])
def test_gradients_that_are_changed_between_passes_are_refused_where_workers_differ(between: Any, root: str) -> None:
    with pytest.raises(ScriptError, match="changed between two passes of a step"):
        run_virtual(2, in_two_passes, root, between)
    alone = run_virtual(1, in_two_passes, root + "1", between)
    assert identical(alone[0], in_two_passes(None, root, between))
    run_virtual(2, in_two_passes, root + "2", between, "sync=local_sgd")


@pytest.mark.parametrize("between", [decays, drops, lambda model: None])
def test_passes_of_the_scripts_own_and_dropped_gradients_count_between_passes(between: Any, root: str) -> None:
    for weights in run_virtual(2, in_two_passes, root, between):
        assert distance(weights, in_two_passes(None, root, between)) < EXACT


def test_a_mode_whose_replicas_step_alone_steps_with_the_changed_gradients(root: str) -> None:
    plain = run_virtual(2, train, root, "sync=local_sgd")
    changed = run_virtual(2, partial(train, change=halved), root + "2", "sync=local_sgd")
    assert distance(plain[0]["weights"], changed[0]["weights"]) > 1e-6


@pytest.mark.parametrize("overrides", [("sync.shard=gradients",), ("sync=dion",)])
def test_a_mode_that_exchanges_gradients_inside_its_step_refuses_changed_ones(
    overrides: tuple[str, ...], root: str
) -> None:
    train(None, root, *overrides)
    with pytest.raises(ScriptError, match=r"changed after run.backward.*Choose clip=norm"):
        run_virtual(2, partial(train, change=written), root + "2", *overrides)


def test_a_mode_that_exchanges_gradients_inside_its_step_refuses_a_change_that_no_version_tells(root: str) -> None:
    with pytest.raises(ScriptError, match=r"changed after run.backward.*Choose clip=norm"):
        run_virtual(2, partial(train, change=scaled_unseen), root, "sync=dion")


def test_dion_leaves_matrices_that_the_optimizer_does_not_have(root: str) -> None:
    def wrapped(comm: Comm, root: str) -> dict[str, Tensor]:
        model, _, loader = parts()
        optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
        with joined(comm, root, model, optimizer, loader, "sync=dion") as run:
            for batch in run.loader:
                comm.elapse(0.01)
                run.optimizer.zero_grad()
                run.backward(run.model(**batch).loss)
                run.optimizer.step()
        return weights_of(model)

    began = weights_of(parts()[0])
    for weights in run_virtual(2, wrapped, root):
        moved = {name for name, each in weights.items() if not torch.equal(each, began[name])}
        assert moved == {"head.weight", "head.bias"}


def written(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)


def scheduled(comm: Comm, root: str) -> list[float]:
    model, _, loader = parts()
    run = joined(comm, root, model, torch.optim.SGD(model.parameters(), lr=1.0), loader)
    schedule = torch.optim.lr_scheduler.StepLR(run.optimizer, 2, gamma=0.5)
    rates = []
    with run:
        for batch in run.loader:
            comm.elapse(0.01)
            run.backward(run.model(**batch).loss)
            run.optimizer.step()
            rates.append(run.optimizer.param_groups[0]["lr"])
            schedule.step()
    return rates


def test_a_schedule_of_torch_takes_the_wrapped_optimizer(root: str) -> None:
    assert run_virtual(2, scheduled, root)[0] == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


def closes(comm: Comm, root: str) -> Any:
    model, optimizer, loader = parts()
    with joined(comm, root, model, optimizer, loader) as run:
        for batch in run.loader:

            def closure(batch: Any = batch) -> Tensor:
                run.optimizer.zero_grad()
                loss = run.model(**batch).loss
                run.backward(loss)
                return loss

            comm.elapse(0.01)
            told = run.optimizer.step(closure)
            assert isinstance(told, Tensor) and told.dim() == 0
    return weights_of(model)


def test_a_closure_makes_the_passes_of_a_step(root: str) -> None:
    for weights in run_virtual(2, closes, root):
        assert distance(weights, serially(epochs=1)) < EXACT


def test_an_optimizer_that_calls_its_closure_more_than_once_is_refused(root: str) -> None:
    model, _, loader = parts()
    with pytest.raises(ConfigError, match=r"optimizer=LBFGS: calls its closure.*Choose"):
        wrap(model, torch.optim.LBFGS(model.parameters()), loader, root=root)


def test_the_gradient_of_worker_0_comes_in_the_memory_format_of_its_weight(root: str) -> None:
    def trained(comm: Comm | None) -> Any:
        model, _, loader = parts(samples=16, shuffle=False)
        model.embedding.weight.data = model.embedding.weight.detach().t().contiguous().t()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, fused=True)
        if comm is None:
            for batch in loader:
                optimizer.zero_grad()
                model(**batch).loss.backward()
                optimizer.step()
            return weights_of(model)
        with joined(comm, root, model, optimizer, loader) as run:
            for batch in run.loader:
                comm.elapse(0.01)
                run.optimizer.zero_grad()
                run.backward(run.model(**batch).loss)
                if run.rank == 1:
                    model.embedding.weight.grad.add_(1.0)
                run.optimizer.step()
        return weights_of(model)

    for weights in run_virtual(2, trained):
        assert distance(weights, trained(None)) < EXACT
