"""Samples of several inputs, and of weighted targets: the same training, whoever shares it."""

from pathlib import Path

import pytest
import torch
from houses import Houses, OfStreets
from measured_machines import machine
from safetensors.torch import load_file
from torch import Tensor, nn

from paceline import engine
from paceline.batches import Fields, call
from paceline.conf.errors import ConfigError
from paceline.engine import Result, prepare
from paceline.tasks.base import Split
from paceline.tasks.partition import ShuffledPartition
from paceline.verify import verify

HOUSES = """# @package _global_
defaults: [override /model: null, override /data: null, override /task: null]
model: {_target_: houses.OfStreets, width: 6}
data: {_target_: houses.Houses, inputs: dict, weights: none}
task: {_target_: houses.Robust}
"""
SHORT = ["tracking=none", "checkpoint.every=0", "evaluate.every=100", "optimizer.lr=0.1", "optimizer.momentum=0.5"]


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    (folder / "experiment").mkdir()
    (folder / "experiment" / "houses.yaml").write_text(HOUSES)
    (folder / "experiment" / "squared.yaml").write_text(HOUSES.replace("houses.Robust", SQUARED))
    (folder / "experiment" / "mlp.yaml").write_text(HOUSES.replace("houses.OfStreets, width: 6", MLP))
    plain = HOUSES.replace("houses.Robust", SQUARED).replace("houses.OfStreets, width: 6", MLP).replace("dict", "one")
    (folder / "experiment" / "plain.yaml").write_text(plain)
    return folder


SQUARED = "paceline.tasks.losses.squared.Squared"
MLP = "paceline.tasks.models.mlp.MLP, hidden: [6]"


def trained(mine: Path, root: Path, *overrides: str) -> Result:
    given = [*SHORT, "hardware=virtual", *overrides]
    result = engine.run(given, config_dir=mine, allow_modules=["houses"], root=root, quiet=True)
    assert result is not None
    return result


def weights_of(result: Result) -> dict[str, Tensor]:
    return load_file(result.path / "model.safetensors")


def alike(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-4, atol=1e-5)


def by_hand(data: Houses, model: nn.Module, batch_size: int, steps: int, seed: int = 0) -> dict[str, Tensor]:
    """Of each step's samples the weighted mean of squared errors, in plain torch."""
    train: Split = data.load()[0]
    order = ShuffledPartition(len(train), 1, batch_size, seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for step in range(steps):
        rows = order.indices(step, 0)
        assert isinstance(train.inputs, dict)
        errors = (model(**{key: each[rows] for key, each in train.inputs.items()}) - train.targets[rows]).square()
        w = torch.ones_like(errors) if train.weights is None else train.weights[rows].reshape(len(rows), -1)
        w = w.expand(errors.shape).float()
        optimizer.zero_grad()
        ((w * errors).sum() / w.sum()).backward()
        optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


# -- several inputs


@pytest.mark.parametrize(
    "sync",
    ["bsp", "fedavg", pytest.param("asp", marks=pytest.mark.slow), pytest.param("gossip", marks=pytest.mark.slow)],
)
def test_a_users_own_model_data_and_loss_of_several_inputs_are_trained_from_one_yaml(
    mine: Path, root: Path, sync: str
) -> None:
    result = trained(mine, root, "experiment=houses", f"sync={sync}", "epochs=12", "hardware.workers=2")
    assert result.summary["status"] == "completed" and result.summary["r2"] > 0.5
    assert result.summary["wire"]["bytes_per_step"] == result.summary["predicted"]["bytes_per_step"]
    assert (result.summary["model"], result.summary["data"], result.summary["task"]) == (
        "OfStreets",
        "Houses",
        "Robust",
    )


@pytest.mark.parametrize("weights", ["none", "samples", "mask"])
def test_replicas_that_share_weighted_samples_take_the_steps_of_the_weighted_mean_over_all_of_them(
    mine: Path, root: Path, weights: str
) -> None:
    """Uneven weights, and an uneven last batch: 90 samples in steps of 32."""
    given = ["experiment=squared", f"data.weights={weights}", "steps=7"]
    shared = weights_of(trained(mine, root, *given, "batch_size=8", "hardware.workers=4"))
    torch.manual_seed(0)
    alike(shared, by_hand(Houses("dict", weights), OfStreets(), 32, 7))  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", ["strategy=pipeline strategy.stages=2 hardware.workers=4", "strategy=tensor hardware.workers=2"]
)
def test_a_mask_of_targets_is_learnt_alike_in_micro_batches_and_pieces(mine: Path, root: Path, strategy: str) -> None:
    given = ["experiment=plain", "data.weights=mask", "steps=4"]
    size = "batch_size=16" if "pipeline" in strategy else "batch_size=32"
    alone = trained(mine, root, *given, "batch_size=32", "strategy=single", "hardware.workers=1")
    alike(weights_of(trained(mine, root, *given, size, *strategy.split())), weights_of(alone))


def test_positional_inputs_are_those_of_a_tuple_and_named_ones_those_of_a_dict(mine: Path, root: Path) -> None:
    found = [
        trained(mine, root, "experiment=houses", f"data.inputs={kind}", "steps=3", "hardware.workers=2")
        for kind in ("dict", "tuple")
    ]
    assert (found[0].path / "model.safetensors").read_bytes() == (found[1].path / "model.safetensors").read_bytes()

    def forward(*given: object, **named: object) -> object:
        return given, named

    x, y = torch.zeros(3, 1), torch.ones(3)
    assert call(forward, x) == ((x,), {})
    assert call(forward, Fields([x, y])) == ((x, y), {}) and call(forward, Fields({"b": x, "a": y})) == (
        (),
        {"b": x, "a": y},
    )


def test_several_tensors_are_cut_along_their_samples_as_one() -> None:
    both = Fields({"x": torch.arange(12).view(6, 2), "y": torch.arange(6)})
    for pieces, whole in ((both.split([1, 3, 2]), [1, 3, 2]), (both.tensor_split(4), [2, 2, 1, 1])):
        assert [len(piece) for piece in pieces] == whole
        assert torch.equal(torch.cat([piece.tensors["x"] for piece in pieces]), both.tensors["x"])
        assert all(torch.equal(piece.tensors["x"][:, 0], 2 * piece.tensors["y"]) for piece in pieces)
    assert torch.equal(both[torch.tensor([4, 1])].tensors["y"], torch.tensor([4, 1]))
    assert both.to(torch.float64).tensors["y"].dtype == torch.int64


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["sync=bsp", "sync=asp", "sync=fedavg", "strategy=zero", "strategy=torch_ddp", "strategy=torch_fsdp"]
)
def test_they_are_trained_on_processes_too(mine: Path, root: Path, fork_server: None, way: str) -> None:
    given = [*SHORT, "experiment=houses", way, "epochs=12", "hardware.workers=2"]
    result = engine.run(given, config_dir=mine, allow_modules=["houses"], root=root, quiet=True)
    assert result is not None and result.summary["r2"] > 0.5


# -- refusals


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["strategy=pipeline"],
            "strategy=pipeline: cuts a model into layers, of which each is given the one tensor that the layer before "
            "it made, and a sample of data=Houses has several inputs (measured, street)",
        ),
        (["strategy=domain"], "strategy=domain: cuts the one image of each sample into slabs of rows, and a sample"),
        (["strategy=offload"], "strategy=offload: fetches a model layer by layer"),
        (
            ["experiment=mlp"],
            "model=MLP: its forward takes (input), and data=Houses has several inputs, with which it is called as "
            "forward(measured=..., street=...): ",
        ),
        (["experiment=mlp"], ". Name the inputs as forward does, or choose some of them by data.inputs"),
        (["data.weights=mask"], "task=Robust: has no loss of each target (Robust.each), and the samples of data=Hous"),
        (
            ["strategy=torch_pipelining", "experiment=plain", "data.weights=mask"],
            "strategy=torch_pipelining: hands targets to its own library, which takes one tensor of them",
        ),
    ],
)
def test_what_cannot_take_them_is_refused_by_name(mine: Path, overrides: list[str], sentence: str) -> None:
    chosen = [] if any("experiment" in each for each in overrides) else ["experiment=houses"]
    with pytest.raises(ConfigError) as caught:
        prepare([*chosen, *overrides], mine, ["houses"]).plan()
    assert sentence in str(caught.value) and caught.value.exit_code == 2


def test_a_model_of_two_inputs_is_refused_for_data_of_one() -> None:
    with pytest.raises(ConfigError, match=r"has one input, with which .*: missing a required argument: 'tgt'"):
        prepare(["model={_target_:torch.nn.Transformer}"]).plan()


@pytest.mark.slow
def test_verify_trains_weighted_samples_of_several_inputs_as_the_engine_does(mine: Path) -> None:
    given = [*SHORT, "hardware=virtual", "experiment=squared", "data.weights=samples", "batch_size=8"]
    found = verify(given, config_dir=mine, allow_modules=["houses"], only=("sync.shard=optimizer",), steps=2, workers=2)
    assert found.passed and any(row.word == "pass" and row.replicas == 2 for row in found.rows)


def test_on_a_measured_machine_each_tensor_of_a_batch_is_taken(mine: Path) -> None:
    machine(mine)
    given = [*SHORT, "experiment=squared", "hardware=lab", "strategy=single", "data.weights=samples"]
    prepared = prepare(given, mine, ["houses"])
    parts = prepared.step_time(prepared.plan()).parts
    assert parts["input"] == pytest.approx(4e-3)  # two inputs, the targets, their weights; each takes 1 ms there
