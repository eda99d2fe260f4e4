"""optimizer=pegasos against a loop over the paper's Figure 2, sgd_free_biases against a loss with a penalty in it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.engine import prepare, run
from paceline.strategies.core.state import from_bytes, to_bytes
from paceline.strategies.optimizers.pegasos import Pegasos, norms
from paceline.strategies.optimizers.sgd_free_biases import SGDFreeBiases
from paceline.tasks.data.digits import Digits
from paceline.tasks.losses import Hinge
from paceline.tasks.partition import Shuffled

DIGITS = ["model=linear", "data=digits", "data.limit=100"]
ONE_VS_REST = ["task=hinge", "task.multiclass=one_vs_rest"]
QUIET = ["tracking=none", "checkpoint.every=0", "evaluate.every=1000"]


# -- the paper's loop


def figure_2(w: np.ndarray, batches: list[tuple[np.ndarray, np.ndarray]], decay: float, project: bool) -> np.ndarray:
    """One two-class machine: w [d], of batches of x [k, d] and y [k] in {-1, 1}; a sample after another."""
    for t, (x, y) in enumerate(batches, start=1):
        eta = 1 / (decay * t)
        step = np.zeros_like(w)
        for xi, yi in zip(x, y, strict=True):
            if yi * (w @ xi) < 1:  # it is in A+
                step += yi * xi
        w = (1 - eta * decay) * w + eta / len(y) * step
        if project:
            w = min(1.0, 1 / (np.sqrt(decay) * np.linalg.norm(w))) * w
    return w


@pytest.mark.parametrize("project", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_class_is_a_two_class_machine_of_the_papers_loop(project: bool, bias: bool) -> None:
    """In float64; with a bias, which is the weight of a feature that is always 1."""
    rng, decay, classes = np.random.default_rng(0), 0.05, 3
    batches = [(rng.normal(size=(5, 7)), rng.integers(classes, size=5)) for _ in range(12)]
    torch.manual_seed(0)
    layer = nn.Linear(7, classes, bias=bias).double()
    weights = [layer.weight] + ([layer.bias[:, None]] if bias else [])
    first = torch.cat(weights, dim=1).detach().numpy().copy()  # [classes, 7 or 8]
    optimizer = Pegasos(layer.parameters(), weight_decay=decay, project=project)
    shrunk = 0
    for x, y in batches:
        optimizer.zero_grad()
        Hinge("one_vs_rest").loss(layer(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimizer.step()
        shrunk += int((norms([*layer.parameters()]) > 0.999 / decay**0.5).any())
    for r in range(classes):
        with_one = [(np.c_[x, np.ones(len(x))] if bias else x, np.where(y == r, 1, -1)) for x, y in batches]
        wanted = figure_2(first[r], with_one, decay, project)
        ours = layer.weight[r].detach().numpy()
        if bias:
            ours = np.append(ours, layer.bias[r].item())
        np.testing.assert_allclose(ours, wanted, rtol=1e-12)
    assert shrunk > 0, "nothing was projected, or would have been"


def test_saved_between_steps_it_goes_on_with_its_t() -> None:
    def backward(layer: nn.Linear, step: int) -> None:
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(4, 6, generator=generator), torch.randint(3, (4,), generator=generator)
        layer.zero_grad()
        Hinge("one_vs_rest").loss(layer(x), y).backward()

    torch.manual_seed(0)
    whole, half = nn.Linear(6, 3), nn.Linear(6, 3)
    half.load_state_dict(whole.state_dict())
    straight, first = Pegasos(whole.parameters(), 0.1), Pegasos(half.parameters(), 0.1)
    for step in range(6):
        if step == 3:
            saved = from_bytes(to_bytes(first.state_dict()))
            first = Pegasos(half.parameters(), 0.1)
            first.load_state_dict(saved)
        for layer, optimizer in ((whole, straight), (half, first)):
            backward(layer, step)
            optimizer.step()
    assert torch.equal(whole.weight, half.weight) and torch.equal(whole.bias, half.bias)


# -- whole runs


def trained(root: Path, *overrides: str, **how: Any) -> tuple[dict[str, Tensor], dict]:
    result = run([*([] if "resume" in how else QUIET), *overrides], root=root, quiet=True, **how)
    assert result is not None
    return safetensors.torch.load_file(result.path / "model.safetensors"), result.summary


def batches_of(samples: int, steps: int, batch_size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Those of one worker on digits, under seed 0."""
    train, _ = Digits(limit=samples).load()
    dealt = Shuffled().deal(train.targets, 1, batch_size, 0)
    taken = [train.take(dealt.indices(step, 0)) for step in range(steps)]
    return [(lone(each.inputs).flatten(1).double().numpy(), each.targets.numpy()) for each in taken]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_n_workers_under_bsp_are_mini_batch_pegasos_with_the_samples_of_all(tmp_path: Path, workers: int) -> None:
    """12 samples a step, of 100: each epoch's last step has 4, of which three workers have 2, 1 and 1."""
    decay, steps = 0.1, 12
    begun, _ = trained(
        tmp_path, *DIGITS, *ONE_VS_REST, "optimizer=sgd", "optimizer.lr=0", "steps=1", "hardware=virtual"
    )
    first = np.c_[begun["output.weight"].double().numpy(), begun["output.bias"].double().numpy()]
    ours, _ = trained(
        tmp_path,
        *DIGITS,
        *ONE_VS_REST,
        "optimizer=pegasos",
        f"optimizer.weight_decay={decay}",
        f"batch_size={12 // workers}",
        f"steps={steps}",
        "hardware=virtual",
        f"hardware.workers={workers}",
    )
    got = np.c_[ours["output.weight"].numpy(), ours["output.bias"].numpy()]
    for r in range(10):
        batches = [(np.c_[x, np.ones(len(x))], np.where(y == r, 1, -1)) for x, y in batches_of(100, steps, 12)]
        np.testing.assert_allclose(got[r], figure_2(first[r], batches, decay, True), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.dist
def test_on_processes_it_takes_the_virtual_clusters_steps_and_a_resumed_run_equals_a_straight_one(
    fork_server: None, tmp_path: Path
) -> None:
    on = [*DIGITS, *ONE_VS_REST, "optimizer=pegasos", "batch_size=10", "hardware.workers=2"]
    real = ["hardware.device=cpu", "hardware.threads=1", "checkpoint.every_steps=3"]
    straight, summary = trained(tmp_path, *on, *real, "steps=7", name="straight")
    trained(tmp_path, *on, *real, "steps=3", name="again")
    resumed, _ = trained(tmp_path, "steps=7", resume="again")
    modelled, _ = trained(tmp_path, *on, "hardware=virtual", "steps=7", name="modelled")
    for key, value in straight.items():
        assert torch.equal(value, resumed[key])
        torch.testing.assert_close(value, modelled[key], rtol=1e-5, atol=1e-6)
    assert summary["memory"]["optimizer"] == summary["predicted"]["memory"]["optimizer"] == 0


# -- what it cannot go with


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["task=squared_hinge"], "the hinge loss of one class against the others, and task=squared_hinge is another"),
        (
            ["task=hinge"],
            "and task=hinge task.multiclass=crammer_singer is another. Choose task=hinge task.multiclass=",
        ),
        (["task=cross_entropy"], "and task=cross_entropy is another"),
        ([*ONE_VS_REST, "model=mlp"], r"here are 6 tensors \(\[256, 64\], .*Choose model=linear, or optimizer=sgd"),
        ([*ONE_VS_REST, "schedule=cosine"], "schedule=cosine: moves the rate lr .* Pegasos has none"),
        ([*ONE_VS_REST, "optimizer.momentum=0.9"], "optimizer.momentum: "),
        ([*ONE_VS_REST, "optimizer.weight_decay=0"], "optimizer.weight_decay=0: must be greater than 0"),
        ([*ONE_VS_REST, "sync=asp"], "optimizer=pegasos: steps with the weights and biases of a class"),
        ([*ONE_VS_REST, "clip=norm"], "optimizer=pegasos: divides the gradient as it is by lambda t, and"),
        (
            [*ONE_VS_REST, "compress=signsgd"],
            "optimizer=pegasos: .* compress=signsgd makes signs of gradients. Choose .*compress=none",
        ),
        ([*ONE_VS_REST, "compress=demo"], "optimizer=pegasos: divides the gradient as it is by lambda t, and"),
        ([*ONE_VS_REST, "compress=dgc"], "optimizer=pegasos: divides the gradient as it is by lambda t, and"),
        (
            [*ONE_VS_REST, "aggregate=majority_vote"],
            "optimizer=pegasos: divides the gradient as it is by lambda t, and",
        ),
        ([*ONE_VS_REST, "privacy=dp_sgd"], "optimizer=pegasos: divides the gradient as it is by lambda t, and"),
        ([*ONE_VS_REST, "sync.shard=optimizer"], "sync.shard=optimizer: a worker steps on pieces of tensors"),
        (
            [*ONE_VS_REST, "strategy=torch_zero_optimizer"],
            "optimizer=pegasos: steps with the weights and biases of a class",
        ),
        ([*ONE_VS_REST, "sync=easgd", "sync.rho=1"], "sync.rho=1: .* rate lr, and Pegasos has none. Choose sync.rho"),
        ([*ONE_VS_REST, "sync=easgd", "sync.nesterov=true"], "Pegasos has no momentum that could be Nesterov's"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_pegasos_cannot_go_with_is_refused_by_name(overrides: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        prepare([*DIGITS, "hardware.workers=2", "optimizer=pegasos", *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kept", ["compress=topk", "compress=qsgd", "aggregate=median"])
def test_what_keeps_how_long_gradients_are_goes_with_pegasos(kept: str) -> None:
    prepare([*DIGITS, *ONE_VS_REST, "hardware.workers=3", "optimizer=pegasos", kept]).plan()


def test_a_model_that_ends_in_something_else_than_a_linear_layer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bent.py").write_text(
        "from torch import nn\n\n\nclass Bent(nn.Sequential):\n"
        "    def __init__(self) -> None:\n        super().__init__(nn.Flatten(), nn.Linear(64, 10), nn.Tanh())\n"
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "bent.yaml").write_text("# Bent\n_target_: bent.Bent\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ValueError, match="must be linear in what is trained, and the last layer of model=bent is a Tanh"
    ):
        prepare([*DIGITS, *ONE_VS_REST, "optimizer=pegasos", "model=bent"], tmp_path, ["bent"]).plan()


@pytest.mark.parametrize("shapes", [[[3, 4], [3], [3]], [[3, 4], [4]], [[3]], [[2, 3, 4], [2]], [[3, 4], [3, 4]]])
def test_tensors_that_are_no_linear_layer_are_refused(shapes: list[list[int]]) -> None:
    with pytest.raises(ConfigError, match="of one linear layer, which is the whole model, and here"):
        Pegasos([nn.Parameter(torch.zeros(shape)) for shape in shapes])


# -- free biases


@pytest.mark.parametrize("nesterov", [True, False])
def test_weight_decay_leaves_biases_alone_and_all_else_is_torchs_sgd(nesterov: bool) -> None:
    """The same steps as of a loss with the penalty on matrices in it."""
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)).double()
    theirs = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)).double()
    theirs.load_state_dict(ours.state_dict())
    mine = SGDFreeBiases(ours.parameters(), lr=0.1, momentum=0.9, weight_decay=0.3, nesterov=nesterov)
    plain = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, nesterov=nesterov)
    for _ in range(5):
        x, y = torch.randn(8, 6, dtype=torch.float64), torch.randint(3, (8,))
        mine.zero_grad()
        plain.zero_grad()
        nn.functional.cross_entropy(ours(x), y).backward()
        penalty = sum(each.square().sum() for each in theirs.parameters() if each.dim() == 2)
        (nn.functional.cross_entropy(theirs(x), y) + 0.3 / 2 * penalty).backward()
        mine.step()
        plain.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
