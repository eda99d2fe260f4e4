"""Steps that a script drops, skips or adds to are those of the same loop in plain torch, or are refused by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scripts import distance, identical, joined, parts, weights_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.comm import Comm
from paceline.testing.fabrics import run_virtual
from paceline.tracking.run_directory import RunDirectory
from paceline.wrap import ScriptError, wrap

EXACT = 1e-12  # float64: sums in another order
HIDES = [("sync.shard=optimizer",), ("sync.shard=gradients",)]


class Plain:
    """The same calls in plain torch."""

    rank = 0

    def __init__(self) -> None:
        self.model, self.optimizer, self.loader = parts(samples=16)
        self.loader.sampler.generator = torch.Generator().manual_seed(0)  # type: ignore[union-attr]

    def backward(self, loss: Tensor, last: bool = True) -> None:
        loss.backward()


Body = Callable[[Any, int, Any], object]


def plain(body: Body) -> dict[str, Tensor]:
    run = Plain()
    for i, batch in enumerate(run.loader):
        said = body(run, i, batch)
        if said == "break":
            break
        if said != "keep":
            run.optimizer.zero_grad()
    return weights_of(run.model)


def wrapped(comm: Comm, root: str, body: Body, *overrides: str) -> dict[str, Tensor]:
    model, optimizer, loader = parts(samples=16)
    with joined(comm, root, model, optimizer, loader, *overrides) as run:
        for i, batch in enumerate(run.loader):
            comm.elapse(0.01)
            if body(run, i, batch) == "break":
                break
    return weights_of(model)


def loss_of(run: Any, batch: Any) -> Tensor:
    return run.model(**batch).loss


def gradients(model: nn.Module) -> list[Tensor]:
    return [each.grad for each in model.parameters() if each.grad is not None]


@pytest.fixture
def root(tmp_path: Any) -> str:
    return str(tmp_path / "runs")


# -- gradients that a script cannot see


@pytest.mark.parametrize("overrides", HIDES)
@pytest.mark.parametrize("whose", ["model", "optimizer"])
def test_clipping_gradients_that_are_sharded_is_refused(whose: str, overrides: tuple[str, ...], root: str) -> None:
    def clips(run: Any, i: int, batch: Any) -> None:
        run.backward(loss_of(run, batch))
        held = [each for group in run.optimizer.param_groups for each in group["params"]]
        nn.utils.clip_grad_norm_(held if whose == "optimizer" else run.model.parameters(), 0.05)

    with pytest.raises(ScriptError, match=r"^sync.shard=.*cannot read or change.*Choose clip=norm"):
        run_virtual(2, wrapped, root, clips, *overrides)


@pytest.mark.parametrize("overrides", HIDES)
def test_removing_gradients_that_are_sharded_is_refused(overrides: tuple[str, ...], root: str) -> None:
    def removes(run: Any, i: int, batch: Any) -> None:
        run.backward(loss_of(run, batch))
        run.model.zero_grad()
        run.optimizer.step()

    with pytest.raises(ScriptError, match=r"changed after run\.backward"):
        run_virtual(2, wrapped, root, removes, *overrides)


@pytest.mark.parametrize("overrides", HIDES)
def test_a_hook_that_comes_after_wrap_is_refused_where_workers_step_on_pieces(
    overrides: tuple[str, ...], root: str
) -> None:
    def hooked(comm: Comm, root: str) -> None:
        model, optimizer, loader = parts(samples=16)
        with joined(comm, root, model, optimizer, loader, *overrides) as run:
            run.optimizer.register_step_post_hook(lambda *_: None)
            run.backward(loss_of(run, next(iter(run.loader))))
            run.optimizer.step()

    with pytest.raises(ScriptError, match=r"^sync.shard=.*step hooks .*Choose sync.shard=none"):
        run_virtual(2, hooked, root)


@pytest.mark.parametrize("overrides", [(), *HIDES])
def test_a_second_optimizer_steps_with_the_mean_or_is_refused(overrides: tuple[str, ...], root: str) -> None:
    def two(comm: Comm, root: str) -> dict[str, Tensor]:
        model, _, loader = parts(samples=16)
        first = torch.optim.SGD([*model.embedding.parameters(), *model.norm.parameters()], lr=0.1)
        second = torch.optim.Adam(model.head.parameters(), lr=0.1)
        with joined(comm, root, model, first, loader, *overrides) as run:
            for batch in run.loader:
                comm.elapse(0.01)
                run.backward(loss_of(run, batch))
                run.optimizer.step()
                second.step()
                second.zero_grad()
        return weights_of(model)

    if overrides:
        with pytest.raises(ScriptError, match=r"^sync.shard=.*cannot read or change.*sync.shard=none"):
            run_virtual(2, two, root)
    else:
        assert distance(run_virtual(2, two, root)[0], run_virtual(1, two, root + "1")[0]) < EXACT


# -- zero_grad


def drops_a_micro_batch(run: Any, i: int, batch: Any) -> str:
    run.backward(loss_of(run, batch), last=i % 2 == 1)
    if i % 2:
        run.optimizer.step()
        run.optimizer.zero_grad()
    elif i == 0:
        run.optimizer.zero_grad()
    return "keep"


def drops_every_micro_batch(run: Any, i: int, batch: Any) -> None:
    run.backward(loss_of(run, batch), last=i % 2 == 1)
    if i % 2:
        run.optimizer.step()
        run.optimizer.zero_grad()
    else:
        run.model.zero_grad()


def steps_without_gradients(run: Any, i: int, batch: Any) -> None:
    run.optimizer.zero_grad()
    run.backward(loss_of(run, batch))
    if i == 1:
        run.optimizer.zero_grad()
    run.optimizer.step()


def steps_with_zeros(run: Any, i: int, batch: Any) -> None:
    run.backward(loss_of(run, batch))
    if i == 1:
        run.optimizer.zero_grad(set_to_none=False)
    run.optimizer.step()


def skips_with_zero_grad_first(run: Any, i: int, batch: Any) -> None:
    run.optimizer.zero_grad()
    run.backward(loss_of(run, batch))
    if i != 1:
        run.optimizer.step()


def skips_with_zero_grad_last(run: Any, i: int, batch: Any) -> None:
    run.backward(loss_of(run, batch))
    if i != 1:
        run.optimizer.step()
    run.model.zero_grad()


def skips_the_last(run: Any, i: int, batch: Any) -> None:
    run.backward(loss_of(run, batch))
    if i != 3:
        run.optimizer.step()
    run.optimizer.zero_grad()


def adds_before(run: Any, i: int, batch: Any) -> None:
    total: Any = sum(each.square().sum() for each in run.model.parameters())
    total.backward()
    run.backward(loss_of(run, batch))
    run.optimizer.step()


@pytest.mark.parametrize(
    "body",
    [
        drops_a_micro_batch,
        drops_every_micro_batch,
        steps_without_gradients,
        steps_with_zeros,
        skips_with_zero_grad_first,
        skips_with_zero_grad_last,
        skips_the_last,
        adds_before,
    ],
)
def test_dropped_gradients_are_those_of_plain_torch(body: Body, root: str) -> None:
    serial = plain(body)
    assert identical(run_virtual(1, wrapped, root, body)[0], serial)
    for result in run_virtual(2, wrapped, root + "2", body):
        assert distance(result, serial) < EXACT


@pytest.mark.parametrize("body", [drops_every_micro_batch, skips_with_zero_grad_first, skips_the_last])
@pytest.mark.parametrize("overrides", HIDES)
def test_sharded_gradients_are_dropped_as_in_plain_torch(body: Body, overrides: tuple[str, ...], root: str) -> None:
    for result in run_virtual(2, wrapped, root, body, *overrides):
        assert distance(result, plain(body)) < EXACT


def never(run: Any, when: str) -> None: ...


def by_the_optimizer(run: Any, when: str) -> None:
    run.optimizer.zero_grad()


def by_the_model(run: Any, when: str) -> None:
    run.model.zero_grad()


def by_zeros(run: Any, when: str) -> None:
    run.optimizer.zero_grad(set_to_none=False)


def after_the_step(run: Any, when: str) -> None:
    if when == "after":
        run.model.zero_grad()


def zeros_after_the_step(run: Any, when: str) -> None:
    if when == "after":
        run.optimizer.zero_grad(set_to_none=False)


DROPS = [never, by_the_optimizer, by_the_model, by_zeros, after_the_step, zeros_after_the_step]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("drop", DROPS)
def test_a_script_that_never_drops_gradients_is_told_once(
    drop: Callable[[Any, str], object], size: int, root: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def body(run: Any, i: int, batch: Any) -> None:
        drop(run, "before")
        run.backward(loss_of(run, batch))
        run.optimizer.step()
        drop(run, "after")

    for result in run_virtual(size, wrapped, root, body):
        assert distance(result, plain(body)) < EXACT
    assert capfd.readouterr().err.count("note: the script does not drop the gradients") == (drop is never)


def test_sparse_gradients_that_the_script_sets_to_zero_stay_sparse(root: str) -> None:
    torch.manual_seed(0)
    model = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)  # takes no dense ones
    data = TensorDataset(torch.arange(4))
    with wrap(model, optimizer, DataLoader(data, batch_size=1), root=root) as run:
        for (batch,) in run.loader:
            run.optimizer.zero_grad(set_to_none=False)
            run.backward(model(batch).square().mean())
            run.optimizer.step()
    assert run.steps == 4


def test_a_gradient_that_the_script_keeps_is_not_written_to(root: str) -> None:
    kept: list[tuple[Tensor, Tensor]] = []

    def body(run: Any, i: int, batch: Any) -> None:
        run.backward(loss_of(run, batch))
        kept.append((run.model.head.weight.grad, run.model.head.weight.grad.clone()))
        run.optimizer.step()

    run_virtual(1, wrapped, root, body)
    assert len(kept) == 4 and all(torch.equal(gradient, was) for gradient, was in kept)


# -- skipped steps


def scales(run: Any, i: int, batch: Any) -> None:
    """A GradScaler's loop, in which the second step and the last one overflow."""
    if i == 0:
        run.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    run.backward(run.scaler.scale(loss_of(run, batch)))
    if i in (1, 3):
        next(run.model.parameters()).grad[0, 0] = float("inf")
    run.scaler.unscale_(run.optimizer)
    run.scaler.step(run.optimizer)
    run.scaler.update()


@pytest.mark.parametrize("size", [1, 2])
def test_a_grad_scaler_skips_a_step_that_overflowed(size: int, root: str) -> None:
    serial = plain(scales)
    for result in run_virtual(size, wrapped, root, scales):
        assert distance(result, serial) < EXACT
    directory = RunDirectory.open(root, "mine")
    assert directory.records()[-1]["status"] == "completed"
    assert [record["step"] for record in directory.records() if record["kind"] == "step"] == [1, 2, 3, 4]


def test_a_fused_optimizer_leaves_scaling_to_the_scaler(root: str) -> None:
    model, _, loader = parts()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with wrap(model, optimizer, loader, name="mine", root=root) as run:
        assert not run.optimizer._step_supports_amp_scaling


def test_a_replica_that_steps_alone_skips_alone(root: str) -> None:
    def skips_one(run: Any, i: int, batch: Any) -> None:
        run.backward(loss_of(run, batch))
        if run.rank == 0 or i != 1:
            run.optimizer.step()
        run.optimizer.zero_grad()

    one, other = run_virtual(2, wrapped, root, skips_one, "sync=local_sgd", "sync.period=2")
    assert identical(one, other)


@pytest.mark.parametrize("overrides", [(), ("sync=dion",), ("sync.shard=gradients",)])
def test_a_step_that_one_worker_alone_skips_is_refused(overrides: tuple[str, ...], root: str) -> None:
    def skips_one(run: Any, i: int, batch: Any) -> None:
        run.backward(loss_of(run, batch))
        if run.rank == 0 or i != 1:
            run.optimizer.step()
        run.optimizer.zero_grad()

    with pytest.raises(ScriptError, match=r"worker 0 takes step 2 and worker 1 skips it. Choose"):
        run_virtual(2, wrapped, root, skips_one, *overrides)


@pytest.mark.parametrize("overrides", [(), ("sync=dion",), ("sync.shard=gradients",)])
def test_a_batch_that_one_worker_alone_leaves_out_is_refused(overrides: tuple[str, ...], root: str) -> None:
    def leaves_out(comm: Comm, root: str) -> None:
        with joined(comm, root, *parts(), *overrides) as run:
            for i, batch in enumerate(run.loader):
                comm.elapse(0.01)
                if run.rank == 0 and i == 4:
                    continue
                run.backward(loss_of(run, batch))
                run.optimizer.step()

    with pytest.raises(ScriptError, match="worker 1 makes step 5 on batch 5, and worker 0 on batch 6: one of them"):
        run_virtual(2, leaves_out, root)


def test_gradients_that_would_add_up_over_batches_are_refused(root: str) -> None:
    def accumulates(run: Any, i: int, batch: Any) -> None:
        run.backward(loss_of(run, batch))
        if i == 1:
            run.optimizer.step()

    with pytest.raises(ScriptError, match=r"with no optimizer.step\(\) since.*last=False.*zero_grad"):
        run_virtual(2, wrapped, root, accumulates)


def test_the_inner_optimizers_step_is_refused(root: str) -> None:
    model, optimizer, loader = parts()
    with (
        pytest.raises(ScriptError, match=r"call run.optimizer.step\(\)"),
        wrap(model, optimizer, loader, name="mine", root=root) as run,
    ):
        run.backward(model(**next(iter(run.loader))).loss)
        optimizer.step()
    optimizer.step()  # after the run it is the script's again


def test_a_run_without_a_single_step_is_refused(root: str) -> None:
    def never(run: Any, i: int, batch: Any) -> None:
        run.optimizer.zero_grad()
        run.backward(loss_of(run, batch))
        run.optimizer.zero_grad()

    with pytest.raises(ScriptError, match="none of the 4 steps"):
        run_virtual(2, wrapped, root, never)
    assert RunDirectory.open(root, "mine").records()[-1]["status"] == "failed"


# -- batches that are not used


def breaks_early(run: Any, i: int, batch: Any) -> str:
    if i == 2:
        return "break"
    run.backward(loss_of(run, batch))
    run.optimizer.step()
    return ""


def leaves_one_out(run: Any, i: int, batch: Any) -> None:
    if i != 1:
        run.backward(loss_of(run, batch))
        run.optimizer.step()


@pytest.mark.parametrize("body", [breaks_early, leaves_one_out])
def test_a_batch_that_is_not_used_is_no_step(body: Body, root: str) -> None:
    for result in run_virtual(2, wrapped, root, body):
        assert distance(result, plain(body)) < EXACT
    summary = RunDirectory.open(root, "mine").read_summary()
    assert summary is not None and (summary["status"], summary["steps"]) == (
        "completed",
        2 if body is breaks_early else 3,
    )


# -- gradients that workers change in different ways


def noisy(run: Any, i: int, batch: Any) -> None:
    run.backward(loss_of(run, batch))
    for each in run.model.parameters():
        each.grad.add_(torch.randn_like(each))
    run.optimizer.step()


def shuffled(run: Any, i: int, batch: Any) -> None:
    run.backward(loss_of(run, batch))
    for each in run.model.parameters():
        each.grad.copy_(each.grad.flatten().roll(run.rank).view_as(each))
    run.optimizer.step()


def changed_by_one(run: Any, i: int, batch: Any) -> None:
    run.backward(loss_of(run, batch))
    if run.rank == 1:
        run.model.head.bias.grad = None
        run.model.head.weight.grad.zero_()
    run.optimizer.step()


def changed_by_the_first(run: Any, i: int, batch: Any) -> None:
    run.backward(loss_of(run, batch))
    if run.rank == 0:
        run.model.head.bias.grad = None
        run.model.head.weight.grad.mul_(0.5)
    run.optimizer.step()


@pytest.mark.parametrize("overrides", [("sync=bsp",), ("sync=bsp_naive",)])
def test_noise_is_that_of_the_first_worker(overrides: tuple[str, ...], root: str) -> None:
    results = run_virtual(3, wrapped, root, noisy, *overrides)
    assert all(identical(result, results[0]) for result in results)
    results = run_virtual(3, wrapped, root + "1", shuffled, *overrides)
    assert all(identical(result, results[0]) for result in results)
    for result in run_virtual(2, wrapped, root + "2", changed_by_one, *overrides):
        assert distance(result, plain(leaves_none_out)) < EXACT
    for result in run_virtual(2, wrapped, root + "3", changed_by_the_first, *overrides):
        assert distance(result, plain(changed_by_the_first)) < EXACT


def leaves_none_out(run: Any, i: int, batch: Any) -> None:
    run.backward(loss_of(run, batch))
    run.optimizer.step()


def test_replicas_that_step_alone_keep_noise_of_their_own(root: str) -> None:
    one, other = run_virtual(2, noise_left, root)
    assert not torch.equal(one, other)


def noise_left(comm: Comm, root: str) -> Tensor:
    model, optimizer, loader = parts()
    run = joined(comm, root, model, optimizer, loader, "sync=local_sgd")
    batch = next(iter(run.loader))
    comm.elapse(0.01)
    noisy(run, 0, batch)
    return next(model.parameters()).detach().clone()


# -- passes beside run.backward


@pytest.mark.parametrize("overrides", [(), ("sync.shard=gradients",), ("sync=dion",)])
def test_a_plain_backward_pass_after_the_exchange_is_refused(overrides: tuple[str, ...], root: str) -> None:
    def adds_after(run: Any, i: int, batch: Any) -> None:
        run.backward(loss_of(run, batch))
        next(run.model.parameters()).square().sum().backward()

    refused = r"^loss.backward\(\) after run.backward.*Add it to the loss|add to them by loss.backward\(\)"
    with pytest.raises(ScriptError, match=refused):
        run_virtual(2, wrapped, root, adds_after, *overrides)


@pytest.mark.parametrize("size", [1, 2])
def test_gradients_of_parameters_that_come_later_are_dropped_too(size: int, root: str) -> None:
    def adds(run: Any, i: int, batch: Any) -> None:
        if i == 1:
            run.optimizer.add_param_group({"params": [run.model.embedding.weight]})
        run.optimizer.zero_grad()
        run.backward(loss_of(run, batch))
        run.optimizer.step()

    def later(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([each for name, each in model.named_parameters() if "embedding" not in name], lr=0.1)

    def whole(comm: Comm, root: str) -> dict[str, Tensor]:
        model, _, loader = parts(samples=16)
        with joined(comm, root, model, later(model), loader) as run:
            for i, batch in enumerate(run.loader):
                comm.elapse(0.01)
                adds(run, i, batch)
        return weights_of(model)

    expected = Plain()
    expected.optimizer = later(expected.model)
    for i, batch in enumerate(expected.loader):
        adds(expected, i, batch)
    for found in run_virtual(size, whole, root):
        assert distance(found, weights_of(expected.model)) < EXACT


def test_a_closed_run_leaves_no_hooks(root: str) -> None:
    model, optimizer, loader = parts()
    with wrap(model, optimizer, loader, name="mine", root=root) as run:
        run.backward(model(**next(iter(run.loader))).loss)
        run.optimizer.step()
    model(**next(iter(loader))).loss.backward()
    optimizer.step()


# -- replicas that are to be alike


def other_rate(run: Any, i: int, batch: Any) -> None:
    run.optimizer.param_groups[0]["lr"] = 0.01 * (1 + run.rank)
    run.backward(loss_of(run, batch))
    run.optimizer.step()


def other_weights(run: Any, i: int, batch: Any) -> None:
    run.backward(loss_of(run, batch))
    run.optimizer.step()
    run.model.head.bias.data.add_(float(i == 2 and run.rank))


def other_weights_at_its_end(run: Any, i: int, batch: Any) -> str | None:
    other_weights(run, i, batch)
    return "break" if i == 2 else None  # after step 3, which no step compares


def other_state(run: Any, i: int, batch: Any) -> None:
    run.backward(loss_of(run, batch))
    run.optimizer.step()
    run.optimizer.state[run.model.head.bias]["exp_avg"].add_(float(i == 0 and run.rank))


APART: dict[Body, str] = {
    other_rate: "worker 1 steps with other settings of the optimizer .* at step 1",
    other_weights: "parameter head.bias of worker 1 differs from that of worker 0 after 3 steps",
    other_weights_at_its_end: "parameter head.bias of worker 1 differs from that of worker 0 after 3 steps",
    other_state: "parameter head.bias of worker 1 differs from that of worker 0 after",
}


@pytest.mark.parametrize("body", APART)
def test_a_script_that_sends_replicas_apart_is_refused(body: Body, root: str) -> None:
    with pytest.raises(ScriptError, match=APART[body]):
        run_virtual(2, wrapped, root, body)
    run_virtual(2, wrapped, root + "-2", body, "sync=gossip")


def in_place(run: Any, i: int, batch: Any) -> None:
    run.backward(loss_of(run, batch))
    run.optimizer.step()
    for each in run.model.parameters():
        each.data.mul_(0.9)


def replaced(run: Any, i: int, batch: Any) -> None:
    run.backward(loss_of(run, batch))
    run.optimizer.step()
    for each in run.model.parameters():
        each.data = each.data * 0.9


@pytest.mark.parametrize("told", [("sync.shard=optimizer",), ("sync=local_sgd", "sync.period=2")])
def test_other_memory_under_a_parameter_is_a_change_of_its_values(told: tuple[str, ...], root: str) -> None:
    [one, *_], [other, *_] = (
        run_virtual(2, wrapped, root + body.__name__, body, *told) for body in (in_place, replaced)
    )
    assert identical(one, other)


def leaves_out(run: Any, i: int, batch: Any) -> None:
    def closure() -> Tensor | None:
        run.optimizer.zero_grad()
        if i == 1:
            return None
        loss = loss_of(run, batch)
        run.backward(loss)
        return loss

    run.optimizer.step(closure)


def test_a_closure_without_a_pass_leaves_its_batch_out(root: str) -> None:
    for weights in run_virtual(2, wrapped, root, leaves_out):
        assert distance(weights, plain(leaves_out)) < EXACT
