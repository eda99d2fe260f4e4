"""freeze: a plain loop in torch bit for bit; what is stated, sent, saved and refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from paceline.conf.errors import ConfigError
from paceline.engine import plan, run
from paceline.engine.config.compose import compose
from paceline.engine.features.freezing import Layers
from paceline.engine.planning.build import assemble
from paceline.engine.training.batches import seed_for
from paceline.strategies.core.state import state_of
from paceline.tasks.base import Split
from paceline.tasks.running_statistics import batch_norms, renew
from paceline.verify.check import verify

slow = pytest.mark.slow
SMALL = ("tracking=none", "data.limit=96", "batch_size=16", "model.hidden=[12,8]", "steps=8", "epochs=1000")
SMALL += ("evaluate.every=1000", "checkpoint.every=0", "optimizer.lr=0.1", "optimizer.momentum=0.9", "hardware=virtual")
ONE = ("strategy=single", "hardware.workers=1")
FIRST, FOR_AN_EPOCH = ("freeze=layers", "freeze.first=1"), ("freeze=layers", "freeze.first=2", "freeze.until=0.5")


def finished(folder: Path, *overrides: str, name: str = "run", **how: Any) -> Any:
    result = run([*overrides], root=folder, quiet=True, name=name, **how)
    assert result is not None
    return result


def plainly(overrides: list[str], frozen: list[str], until: int) -> dict[str, Tensor]:
    """A loop in plain torch over the run's samples; `frozen` parameters are trained from step `until` on, by SGD that
    begins anew.
    """
    experiment = compose(overrides)
    parts = assemble(experiment, ())
    torch.manual_seed(experiment.seed)
    model = parts.make_model().requires_grad_(True)
    partition, (train, _) = parts.deal(), parts.load()
    named = dict(model.named_parameters())
    optimizer = torch.optim.SGD([each for name, each in named.items() if name not in frozen], lr=0.1, momentum=0.9)
    for step in range(8):
        if step == until:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        taken = train.take(torch.cat([partition.indices(step, j) for j in range(partition.replicas)]))
        seed_for(experiment.seed, step, 0, torch.device("cpu"))
        model.zero_grad()
        F.cross_entropy(model(taken.inputs), taken.targets).backward()
        optimizer.step()
    return state_of(model)


@pytest.mark.parametrize(
    ("chosen", "frozen", "until"),
    [
        (FIRST, ["hidden1.weight", "hidden1.bias"], 8),
        (
            ("freeze=layers", "freeze.modules=[hid*2,output]"),
            [f"{n}.{k}" for n in ("hidden2", "output") for k in ("weight", "bias")],
            8,
        ),
        (FOR_AN_EPOCH, [f"hidden{n}.{k}" for n in (1, 2) for k in ("weight", "bias")], 3),
    ],
    ids=["first", "names", "until"],
)
def test_one_worker_is_a_plain_loop_in_torch_bit_for_bit(
    tmp_path: Path, chosen: tuple[str, ...], frozen: list[str], until: int
) -> None:
    overrides = [*SMALL, *ONE, *chosen]
    found = load_file(finished(tmp_path, *overrides).weights)
    wanted = plainly(overrides, frozen, until)
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    assert not torch.equal(wanted["output.bias"], plainly(overrides, [], 8)["output.bias"]), "frozen layers matter"


def test_what_is_frozen_is_neither_sent_nor_held_for_the_optimizer() -> None:
    some, every = plan([*SMALL, *FIRST]), plan([*SMALL])
    entries = 64 * 12 + 12
    for kind in ("gradients", "optimizer"):
        assert every.peak_memory()[kind] - some.peak_memory()[kind] == 4 * entries
    assert every.bytes_per_step() - some.bytes_per_step() == 4 * entries  # type: ignore[operator] of two replicas
    assert some.as_dict()["freeze"] == {"trained": 194, "parameters": 974, "layers": 1, "of": 3}


@pytest.mark.parametrize("chosen", [FIRST, FOR_AN_EPOCH], ids=["always", "until"])
def test_bytes_and_memory_are_as_stated(tmp_path: Path, chosen: tuple[str, ...]) -> None:
    summary = finished(tmp_path, *SMALL, "hardware.workers=2", *chosen).summary
    assert summary["wire"]["bytes_per_step"] == summary["predicted"]["bytes_per_step"]
    for kind in ("parameters", "gradients", "optimizer"):
        assert summary["memory"][kind] == summary["predicted"]["memory"][kind]


@slow
def test_a_run_resumed_before_and_after_all_layers_are_trained_is_the_whole_run(tmp_path: Path) -> None:
    local = [each for each in SMALL if not each.startswith(("hardware", "checkpoint"))]
    local += ["hardware.workers=2", "checkpoint.every_steps=2", "checkpoint.keep=9", *FOR_AN_EPOCH]
    whole = finished(tmp_path, *local).summary["model_sha256"]
    for step in (2, 4):
        again = run([], root=tmp_path, quiet=True, resume=f"run@{step}")
        assert again is not None and again.summary["model_sha256"] == whole


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)))


def test_a_frozen_batch_norm_computes_with_its_statistics_and_leaves_them() -> None:
    model = Layers(first=2).model(Normed()).train()
    x, before = torch.randn(6, 4), model.norm.running_mean.clone()  # type: ignore[union-attr, operator]
    model.train()
    trained = model(x)
    assert torch.equal(model.norm.running_mean, before) and torch.equal(trained, model.eval()(x))  # type: ignore
    free = Layers(modules=["last"]).model(Normed()).train()
    free(x)
    assert not torch.equal(free.norm.running_mean, before)  # type: ignore[arg-type, union-attr]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["freeze=layers"], "freeze.first=0, freeze.modules=[]: freeze no layer"),
        (
            ["freeze=layers", "freeze.first=3"],
            "freeze.first=3, freeze.modules=[]: leaves nothing to train. Choose fewer than the 3",
        ),
        (["freeze=layers", "freeze.modules=[dense]"], "no layer is called dense. Choose of hidden1, hidden2, output"),
        ([*FIRST, "freeze.until=9", "data.limit=96"], "freeze.until=9: is step 27 of a run of 8 steps"),
        ([*FIRST, "freeze.until=1e308"], "freeze.until=1e+308: is step"),
        ([*FIRST, "adapt=lora"], "freeze=layers: adapt=lora says itself what is trained"),
        ([*FOR_AN_EPOCH, "sync=asp"], "freeze.until=0.5: makes the model another one in mid-run"),
        ([*FOR_AN_EPOCH, "average=ema"], "average=ema: freeze.until=0.5 makes the model another one in mid-run"),
        (
            ["freeze=layers", "freeze.first=1", "strategy=pipeline", "strategy.cut=[1]", "strategy.stages=2"],
            "stage 0 has no parameters to train",
        ),
    ],
)
def test_what_cannot_be_frozen_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan([*SMALL, *overrides])
    assert said in str(error.value)


def test_a_weight_that_is_made_of_others_is_refused() -> None:
    model = Normed()
    torch.nn.utils.parametrizations.weight_norm(model.first)
    for chosen in (Layers(first=1), Layers(modules=["first"]), Layers(modules=["first.*"])):
        with pytest.raises(ConfigError, match="makes its weight of other ones"):
            chosen.model(model)


def test_running_statistics_that_are_frozen_are_not_made_anew_for_an_average() -> None:
    model = Layers(first=2).model(Normed())
    assert isinstance(model.norm, nn.BatchNorm1d) and model.norm.running_mean is not None
    model.norm.running_mean += 3
    renew(model, Split(torch.randn(8, 4), torch.zeros(8)), 4)
    assert torch.equal(model.norm.running_mean, torch.full([4], 3.0)) and not batch_norms(model)


@slow
def test_frozen_batch_norms_are_those_of_serial_training_on_slabs_too() -> None:
    net = ["model=resnet", "model.depth=8", "model.width=4", "data.limit=96", "batch_size=8", "hardware=virtual"]
    found = verify([*net, "freeze=layers", "freeze.first=3"], steps=2, workers=2, only=["domain"])
    assert found.passed, [row.why for row in found.rows]


def test_a_weight_that_is_shared_with_a_trained_layer_is_refused() -> None:
    model = Normed()
    model.last = nn.Linear(4, 4, bias=False)
    model.last.weight = model.first.weight
    with pytest.raises(ConfigError, match="layer last shares a weight with a frozen one"):
        Layers(first=1).model(model)


@slow
def test_all_ways_train_the_same_layers() -> None:
    found = verify([*SMALL[:4], *FIRST, "hardware=virtual"], steps=2, workers=2, only=["data_parallel", "pipeline"])
    assert found.passed, [row.why for row in found.rows if row.word == "fail"]
    with pytest.raises(ConfigError, match=r"freeze.until=0.5: serial training knows of no optimizer that begins anew"):
        verify([*SMALL[:4], *FOR_AN_EPOCH])
