"""Dion against one worker with all samples, with Gram-Schmidt written by hand, and against the polar factor."""

import pytest
import torch
import torch.nn.functional as F
from oracles import ROUNDING, Branching, Case, TwoDtypes, identical, mlp
from replicas import Life, flat, live, saved_after, stacked
from torch import Tensor, nn

from paceline.comm import Comm
from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.strategies import Batch
from paceline.strategies.core.cost import World
from paceline.strategies.sync.dion import Dion

pytestmark = pytest.mark.dist
FLOAT = 4  # bytes
SIZES = [[3, 3], [4, 2], [1, 0], [2, 2], [3, 3], [2, 1]]


def gram_schmidt(x: Tensor) -> Tensor:
    columns: list[Tensor] = []
    for column in x.T:
        for _ in range(2):  # once more for what rounding has left
            for done in columns:
                column = column - (done @ column) * done
        columns.append(column / column.norm())
    return torch.stack(columns, dim=1)


def whole(case: Case, rank: int, mu: float, lr: float) -> list[Tensor]:
    """[entries] after each step, of one worker."""
    model = case.start()
    matrices = [x for x in model.parameters() if x.dim() == 2]
    others = case.optimizer([x for x in model.parameters() if x.dim() != 2])
    kept = [torch.zeros_like(x) for x in matrices]
    bases = []
    for k, x in enumerate(matrices):
        draws = torch.Generator().manual_seed(k)
        bases.append(gram_schmidt(torch.randn(x.shape[1], min(rank, *x.shape), generator=draws, dtype=torch.float64)))
    decay = others.param_groups[0]["weight_decay"]
    trajectory = []
    for step in range(len(case.sizes)):
        inputs, targets = case.step(step)
        model.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        others.step()
        for k, x in enumerate(matrices):
            assert x.grad is not None
            b = kept[k] + x.grad
            p = gram_schmidt(b @ bases[k])
            r = b.T @ p
            kept[k] = b - (1 - mu) * p @ r.T
            scale = (x.shape[0] / x.shape[1]) ** 0.5
            x.data = x.detach() * (1 - lr * decay)
            for j, norm in enumerate(r.norm(dim=0).tolist()):
                if norm > 1e-13:  # the last layer's gradient has rank 3, as its rows add up to 0
                    bases[k][:, j] = r[:, j] / norm
                    x.data -= lr * scale * torch.outer(p[:, j], bases[k][:, j])
        trajectory.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
    return trajectory


@pytest.mark.parametrize(("rank", "mu"), [(2, 0.9), (4, 0.5)])
def test_all_workers_step_as_one_that_has_all_samples(fabric, rank, mu):
    case = Case(SIZES)
    results = fabric(2, live, Life(Dion(rank, mu, lr=0.05), case, seeds=[0, 1]))
    for step, expected in enumerate(whole(case, rank, mu, 0.05)):
        rows = stacked(results, step)
        assert torch.equal(rows[0], rows[1])
        assert torch.allclose(rows[0], expected, rtol=0, atol=ROUNDING)


def test_other_knobs_train_something_else():
    ends = [whole(Case(SIZES), *knobs)[-1] for knobs in [(2, 0.9, 0.05), (3, 0.9, 0.05), (2, 0.5, 0.05)]]
    assert not any(torch.allclose(a, b, atol=1e-6) for i, a in enumerate(ends) for b in ends[:i])


def steps_on(comm: Comm, gradient: Tensor, steps: int, basis: Tensor | None, mu: float) -> Tensor:
    """The way of the last of some steps on one matrix, all with this gradient."""
    x = nn.Parameter(torch.zeros_like(gradient))
    sync = Dion(rank=100, momentum=mu, lr=1.0)
    sync.prepare({"x": x}, torch.optim.SGD([x], lr=1.0), comm)
    if basis is not None:
        sync.load_state_dict({**sync.state_dict(), "q": [basis]})
    before = x.detach().clone()
    for _ in range(steps):
        before = x.detach().clone()
        sync.begin(Batch(torch.zeros(1, 1), torch.zeros(1), 1))
        x.grad = gradient.clone()
        sync.update()
    return x.detach() - before


@pytest.mark.parametrize("shape", [(6, 3), (3, 6), (4, 4)])
@pytest.mark.parametrize("converged", [True, False], ids=["from its singular vectors", "from anywhere"])
def test_at_full_rank_a_step_is_muons_along_the_polar_factor(virtual_workers, shape, converged):
    torch.manual_seed(0)
    u, _, vt = torch.linalg.svd(torch.randn(*shape, dtype=torch.float64), full_matrices=False)
    gradient = u @ torch.diag(2.0 ** -torch.arange(min(shape), dtype=torch.float64)) @ vt
    steps, basis = (1, vt.T.contiguous()) if converged else (80, None)
    [way] = virtual_workers(1, steps_on, gradient, steps, basis, 0.0)
    assert torch.allclose(way, -((shape[0] / shape[1]) ** 0.5) * u @ vt, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("size", [3.0, 0.0], ids=["of rank 1", "of zeros"])
def test_directions_that_are_nothing_but_rounding_are_not_stepped_along(virtual_workers, size):
    """Of a gradient u v^T all columns of R but one are rounding, and unit vectors where they are divided by norms."""
    torch.manual_seed(0)
    u, v = (each / each.norm() for each in (torch.randn(n, dtype=torch.float64) for n in (4, 3)))
    [way] = virtual_workers(1, steps_on, size * torch.outer(u, v), 4, None, 0.0)
    expected = -((4 / 3) ** 0.5) * torch.outer(u, v) if size else torch.zeros(4, 3, dtype=torch.float64)
    assert torch.allclose(way, expected, rtol=0, atol=ROUNDING)


def test_a_matrix_without_a_gradient_stays_where_it_is(virtual_workers):
    case = Case(
        [[3, 3]] * 3, model=Branching, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), branches=None
    )
    for result in virtual_workers(2, live, Life(Dion(), case)):
        assert torch.equal(result["weights"]["never.weight"], case.start().state_dict()["never.weight"])
        assert not torch.equal(result["weights"]["trunk.weight"], case.start().state_dict()["trunk.weight"])


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_stated_cost_and_buffers_are_those_of_a_step(virtual_workers, replicas):
    sync, steps = Dion(rank=5), 4
    cost = sync.cost(list(mlp().parameters()), World(replicas))
    factors = 5 * (10 + 6) + 5 * (8 + 10) + 4 * (4 + 8)
    ring = 2 * (replicas - 1) / replicas * FLOAT
    assert cost.worker == {"all_reduce": pytest.approx(ring * (factors + 10 + 4))}
    for result in virtual_workers(replicas, live, Life(sync, Case([[2] * replicas] * steps, model=mlp))):
        assert result["ledger"].get("all_reduce", 0) == pytest.approx(cost.worker["all_reduce"] * steps, abs=0.5)
        assert result["buffers"] == cost.buffers


def test_replicas_go_on_where_they_were_saved(virtual_workers):
    case = Case(SIZES, model=mlp)
    straight = virtual_workers(2, live, Life(Dion(3), case))
    resumed = virtual_workers(2, live, Life(Dion(3), case, saved=saved_after(straight, 3), start=3))
    for one, other in zip(straight, resumed, strict=True):
        assert all(identical(a, b) for a, b in zip(one["trajectory"][3:], other["trajectory"], strict=True))
    assert flat(straight[0]["weights"]).isfinite().all()


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("sync.rank=0", "sync.rank=0: must be greater than or equal to 1"),
        ("sync.rank=100000", r"sync.rank=100000: must be at most 128, the rank that the matrix \[128, 256\] can have"),
        ("sync.momentum=1", "sync.momentum=1: must be less than 1"),
        ("sync.lr=0", "sync.lr=0: must be greater than 0"),
        ("compress=topk", "compress=topk: sync=dion takes no compress"),
        ("strategy=tensor", "strategy=tensor: holds some parameters whole on several workers of a"),
    ],
)
def test_what_it_cannot_do_is_refused(override, says):
    with pytest.raises(ValueError, match=says) as refused:
        prepare(["sync=dion", "hardware.workers=2", override]).plan()
    assert getattr(refused.value, "exit_code", None) == 2


def test_a_rank_above_every_matrix_is_refused_and_one_above_some_is_not():
    weights = list(mlp().parameters())
    Dion(rank=8).check_model([weights[2:], weights[:2]])
    says = r"sync.rank=9: must be at most 8, the rank that the matrix \[8, 10\] can have and no other exceeds"
    with pytest.raises(ConfigError, match=says):
        Dion(rank=9).check_model([weights[2:], weights[:2]])
    assert Dion(rank=9).notes(weights, World(2)) == []
    Dion().check_model([[weights[1]]])
    assert "no matrix" in Dion().notes([weights[1]], World(2))[0].text


def test_several_dtypes_are_refused():
    with pytest.raises(ConfigError, match=r"sync: .*sync=bsp"):
        Dion().cost(list(TwoDtypes().parameters()), World(2))
