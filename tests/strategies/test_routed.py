"""Routed experts: serial training of each on its own part, nothing sent, and the nearest part's model answers."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from oracles import Case, TwoDtypes, adam, identical, mlp, momentum, serial
from replicas import Life, Replica, flat, live, saved_after
from torch import Tensor, nn

from paceline import engine
from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.engine.base.errors import WorkerFailedError
from paceline.engine.features import experts
from paceline.strategies.core.cost import World
from paceline.strategies.core.setting import Setting
from paceline.strategies.core.state import load_state, state_of
from paceline.strategies.sync.routed import Experts, Routed, state_of_expert, state_of_experts
from paceline.tasks.clusters import Clusters, centres_of
from paceline.tasks.data.digits import Digits
from paceline.tasks.losses.hinge import Hinge
from paceline.tasks.models.linear import Linear
from paceline.tasks.partition import OwnedPartition

pytestmark = pytest.mark.dist
ROOT = Path(__file__).parents[2]
UNEVEN = [[4, 4, 4], [3, 3, 2], [4, 4, 4], [1, 0, 0], [2, 1, 1]]


# -- training


@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_every_replica_trains_alone_and_its_weights_stay_its_own(fabric, optimizer):
    case = Case(UNEVEN, optimizer=optimizer)
    results = fabric(3, live, Life(Routed(), case, looks=True))
    for rank, result in enumerate(results):
        replica = Replica(case, 0, rank)
        for step, weights in enumerate(result["trajectory"]):
            replica.gradient(step)
            replica.step()
            assert torch.equal(flat(weights), replica.vector)
        assert identical(result["weights"], result["trajectory"][-1])
    assert not identical(results[0]["weights"], results[1]["weights"])


def test_one_replica_is_serial_training_bit_for_bit(fabric):
    case = Case([[4], [3], [1]], model=mlp)
    [result] = fabric(1, live, Life(Routed(), case))
    assert identical(result["weights"], serial(case))


def test_training_sends_nothing_as_stated_evaluation_and_checkpoints_included(fabric):
    sync = Routed()
    cost = sync.cost(list(mlp().parameters()), World(3))
    assert (cost.worker, cost.server, cost.buffers) == ({}, {}, 0)
    for result in fabric(3, live, Life(sync, Case(UNEVEN, model=mlp), looks=True)):
        assert result["ledger"] == {}
        assert result["buffers"] == 0


def test_nobody_waits_for_a_slow_one(virtual_workers):
    case = Case([[2, 2, 2]] * 5)
    results = virtual_workers(3, live, Life(Routed(), case, seconds=[1.0, 10.0, 2.0], looks=True))
    assert [result["clock"] for result in results] == [5.0, 50.0, 10.0]


def test_each_replica_goes_on_where_it_was_saved_bit_for_bit(fabric):
    case = Case(UNEVEN, model=mlp, optimizer=adam)
    straight = fabric(3, live, Life(Routed(), case))
    resumed = fabric(3, live, Life(Routed(), case, saved=saved_after(straight, 2), start=2))
    for one, other in zip(resumed, straight, strict=True):
        assert identical(one["weights"], other["weights"])


def test_who_was_dead_and_saved_nothing_goes_on_from_replica_0s_weights_with_a_new_optimizer(fabric):
    case = Case(UNEVEN, optimizer=adam)
    straight = fabric(3, live, Life(Routed(), case))
    first, _, third = saved_after(straight, 2)
    results = fabric(3, live, Life(Routed(), case, saved=[first, first, third], start=2))
    begun = Replica(case, 0, 1)
    begun.vector = flat(straight[0]["trajectory"][1])
    for step in range(2, len(UNEVEN)):
        begun.gradient(step)
        begun.step()
    assert torch.equal(flat(results[1]["weights"]), begun.vector)
    assert identical(results[2]["weights"], straight[2]["weights"])


def test_models_of_several_dtypes_are_taken(fabric):
    case = Case([[3, 3], [2, 2]], model=TwoDtypes)
    results = fabric(2, live, Life(Routed(), case))
    assert not identical(results[0]["weights"], results[1]["weights"])


# -- what is gathered


class Whole(nn.Module):
    """With what keeps running statistics, and counts."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.norm, self.output = nn.BatchNorm1d(3), nn.Linear(3, 2)
        self.norm(torch.randn(5 + seed, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.norm(x))


CENTRES = torch.tensor([[0.0, 0, 0], [1, 1, 1], [-2, 3, 0]])


def gather(comm, dies: int | None = None) -> dict[str, Any]:
    sync = Routed()
    model = Whole(comm.rank)
    sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=0.1), comm)
    sync.configure(Setting(centres=CENTRES))
    if comm.rank == dies:
        os.kill(os.getpid(), signal.SIGKILL)
    with comm.ledger.aside():
        found = sync.gathered(state_of(model))
    return {"found": found, "ledger": comm.ledger.snapshot(), "report": sync.report()}


def test_replica_0_gathers_the_whole_states_of_all_and_nothing_of_it_is_trainings(fabric):
    first, *others = fabric(3, gather)
    assert identical(first["found"], state_of_experts({i: state_of(Whole(i)) for i in range(3)}, CENTRES))
    assert all(result["found"] is None for result in others)
    assert all(result["ledger"] == {} for result in [first, *others])
    assert bool(first["found"]["living"].all())


@pytest.mark.fault
def test_a_dead_replicas_expert_is_no_longer_living(workers):
    results = workers(3, gather, 1, lost=[1])
    found = results[0]["found"]
    assert found["living"].tolist() == [True, False, True]
    assert results[0]["report"] == {"lost": [1]}
    assert identical(state_of_expert(found, 2), state_of(Whole(2)))
    assert all(not tensor.any() for tensor in state_of_expert(found, 1).values())
    assert torch.equal(found["centres"], CENTRES)


# -- who answers


def some_experts(living: list[int] = [0, 1, 2]) -> Experts:  # noqa: B006
    model = Experts([Whole(9 + i) for i in range(3)], torch.zeros(3, 3))
    load_state(model, state_of_experts({i: state_of(Whole(i)) for i in living}, CENTRES))
    return model.eval()


def by_a_loop(x: Tensor, living: list[int]) -> tuple[list[int], Tensor]:
    """Of samples [n, 3], who answers, and what."""
    models = [Whole(i).eval() for i in range(3)]
    near = [min(living, key=lambda i: float(((sample - CENTRES[i]) ** 2).sum())) for sample in x]
    return near, torch.stack([models[k](sample[None])[0] for k, sample in zip(near, x, strict=True)])


@pytest.mark.parametrize("living", [[0, 1, 2], [0, 2], [0]])
def test_the_nearest_living_expert_answers_as_in_a_plain_loop(living):
    model, x = some_experts(living), torch.randn(200, 3, generator=torch.Generator().manual_seed(0)) * 2
    near, answers = by_a_loop(x, living)
    assert model.nearest(x).tolist() == near
    assert len(set(near)) == len(living)
    assert torch.allclose(model(x), answers, rtol=0, atol=1e-6)


def test_of_two_centres_as_near_the_first_answers():
    model = Experts([Whole(0), Whole(1)], torch.tensor([[1.0, 0, 0], [-1, 0, 0]]))
    assert model.nearest(torch.zeros(1, 3)).tolist() == [0]


def test_far_from_all_centres_distances_are_still_told_apart():
    """As they are not computed by |x|^2 - 2 x c + |c|^2, whose float32 would round the difference away."""
    centres = torch.tensor([[4000.0, 0], [4000.0, 0.5]])
    x = torch.tensor([[4000.0, 0.3]] * 40 + [[4000.0, 0.2]] * 40)
    assert Experts([nn.Identity(), nn.Identity()], centres).nearest(x).tolist() == [1] * 40 + [0] * 40


def test_images_are_routed_and_gradients_go_back_to_the_inputs():
    model = Experts(
        [nn.Flatten(), nn.Sequential(nn.Flatten(), nn.Hardtanh(-9, 9))],
        torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)]),
    )
    x = torch.tensor([0.1, 0.9, 0.2]).view(3, 1, 1, 1).expand(3, 1, 2, 2).clone().requires_grad_()
    model(x).square().sum().backward()
    assert x.grad is not None and torch.allclose(x.grad, 2 * x)


def test_no_samples_have_no_answers():
    assert some_experts()(torch.empty(0, 3)).shape == (0, 2)


# -- whole runs

RUN = [
    "sync=routed",
    "partition=clusters",
    "model=linear",
    "task=hinge",
    "data=digits",
    "data.limit=120",
    "batch_size=8",
    "tracking=none",
]
VIRTUAL = [*RUN, "hardware=virtual", "checkpoint.every=0"]
REAL = [*RUN, "hardware.device=cpu", "hardware.threads=1"]
STEPS, LR = 12, 0.02


def trained(path: Path, *overrides: str, **how: Any) -> Any:
    result = engine.run(overrides, root=path, quiet=True, **how)
    assert result is not None and result.status == "completed"
    return result


def model_of(result: Any) -> dict[str, Tensor]:
    return safetensors.torch.load_file(result.path / "model.safetensors")


def serial_on(part: int, replicas: int) -> dict[str, Tensor]:
    """A linear support vector machine in plain torch, on one part of digits."""
    data = Digits(limit=120)
    split, _ = data.load()
    inputs = split.inputs
    assert isinstance(inputs, Tensor)
    dealt = Clusters().deal(split.targets, replicas, 8, 0, inputs)
    torch.manual_seed(0)
    model, hinge = Linear(data.spec), Hinge()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    for step in range(STEPS):
        rows = dealt.indices(step, part)
        if len(rows):
            optimizer.zero_grad()
            hinge.loss(model(inputs[rows]), split.targets[rows]).backward()
            optimizer.step()
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("hardware", [VIRTUAL, pytest.param(REAL, marks=pytest.mark.slow)])
def test_each_expert_is_a_serial_run_on_its_part_and_training_sent_nothing(fork_server, tmp_path, hardware):
    result = trained(tmp_path, *hardware, "hardware.workers=3", f"steps={STEPS}")
    found, split = model_of(result), Digits(limit=120).load()[0]
    for part in range(3):
        assert identical(state_of_expert(found, part), serial_on(part, 3))
    dealt = Clusters().deal(split.targets, 3, 8, 0, lone(split.samples))
    assert torch.equal(found["centres"], centres_of(lone(split.samples), [dealt.owned(part) for part in range(3)]))
    assert found["living"].tolist() == [True] * 3
    assert result.summary["wire"]["total"] == result.summary["wire"]["messages"] == 0
    assert result.summary["predicted"]["bytes_per_step"] == 0
    assert result.summary["replicas"] == 3


def test_what_is_reported_is_the_routed_models_accuracy(fork_server, tmp_path):
    result = trained(tmp_path, *VIRTUAL, "hardware.workers=3", f"steps={STEPS}")
    found, (_, test) = model_of(result), Digits(limit=120).load()
    x, right = lone(test.samples), 0
    for sample, label in zip(x, test.targets, strict=True):
        k = min(range(3), key=lambda i: float(((sample - found["centres"][i]).double() ** 2).sum()))
        expert = state_of_expert(found, k)
        right += int((expert["output.weight"] @ sample.flatten() + expert["output.bias"]).argmax() == label)
    assert result.accuracy == right / len(test)


@pytest.mark.parametrize("hardware", [VIRTUAL, pytest.param(REAL, marks=pytest.mark.slow)])
def test_a_run_on_one_worker_is_the_serial_run_and_leaves_its_model(fork_server, tmp_path, hardware):
    result = trained(tmp_path, *hardware, "hardware.workers=1", f"steps={STEPS}")
    assert identical(model_of(result), serial_on(0, 1))


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(fork_server, tmp_path):
    how = [*REAL, "hardware.workers=2", "checkpoint.every_steps=5", "optimizer=adam"]
    straight = trained(tmp_path, *how, "steps=12", name="straight")
    trained(tmp_path, *how, "steps=5", name="again")
    resumed = trained(tmp_path, "steps=12", resume="again")
    assert identical(model_of(resumed), model_of(straight))
    assert resumed.accuracy == straight.accuracy


@pytest.mark.slow
def test_any_model_is_routed_one_with_running_statistics_too(fork_server, tmp_path):
    how = [*VIRTUAL, "model=resnet", "hardware.workers=2", "task=cross_entropy", "steps=2", "data.limit=32"]
    found = model_of(trained(tmp_path, *how))
    means = [name for name in found if name.startswith("experts.0.") and name.endswith("running_mean")]
    assert means and all(not torch.equal(found[name], found[name.replace("s.0.", "s.1.", 1)]) for name in means)


def other_parts(comm: Any, numbers: list[list[list[int]]]) -> str:
    dealt = OwnedPartition([np.array(part) for part in numbers[comm.rank]], 2, 0)
    try:
        experts.check_alike(comm.key_values, 0, dealt)
    except ConfigError as error:
        return str(error)
    return ""


def test_workers_that_have_made_other_parts_of_the_data_are_found(virtual_workers):
    first, last = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    assert virtual_workers(3, other_parts, [first, first, first]) == ["", "", ""]
    said = virtual_workers(3, other_parts, [first, first, last])
    assert said[:2] == ["", ""]
    assert said[2].startswith("partition: worker 2 has made other parts of the data than worker 0")


def test_numbers_are_predicted_by_the_nearest_expert_and_have_no_labels_to_count(fork_server, tmp_path):
    how = ["sync=routed", "partition=clusters", "data=diabetes", "model=linear", "task=squared", "tracking=none"]
    result = trained(tmp_path, *how, "hardware=virtual", "hardware.workers=2", "steps=3", "checkpoint.every=0")
    assert "labels" not in result.summary
    assert model_of(result)["experts.1.output.weight"].shape == (1, 10)


@pytest.mark.slow
def test_the_python_of_its_page_makes_the_model_that_was_evaluated(fork_server, tmp_path, monkeypatch):
    how = [each for each in VIRTUAL if not each.startswith("model=")]
    ran = trained(tmp_path / "runs", *how, "model=random_features", "hardware.workers=3", "steps=5", name="experts")
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "routed.md").read_text(), flags=re.M | re.S)
    found: dict[str, Any] = {}
    exec(code, found)
    test = Digits(limit=120).load()[1]
    answers = found["model"](test.inputs).argmax(1)
    assert float((answers == test.targets).float().mean()) == pytest.approx(ran.accuracy)


# -- weights that a run begins with

STILL = ["steps=1", "optimizer.lr=1e-30"]  # what comes out is what went in


@pytest.fixture(scope="module")
def learnt(fork_server, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("learnt"), *VIRTUAL, "hardware.workers=3", f"steps={STEPS}")


@pytest.mark.slow
@pytest.mark.slow
def test_a_run_begins_with_the_experts_of_another_one(learnt, tmp_path):
    again = trained(tmp_path, *VIRTUAL, *STILL, "hardware.workers=3", f"weights={learnt.path}")
    assert identical(model_of(again), model_of(learnt))
    assert again.accuracy == learnt.accuracy


def test_an_expert_that_had_died_begins_anew(learnt, tmp_path):
    state = model_of(learnt)
    state["living"][1] = False
    safetensors.torch.save_file(state, tmp_path / "some.safetensors")
    again = model_of(
        trained(tmp_path, *VIRTUAL, *STILL, "hardware.workers=3", f"weights={tmp_path / 'some.safetensors'}")
    )
    torch.manual_seed(0)
    assert identical(state_of_expert(again, 1), state_of(Linear(Digits().spec)))
    assert identical(state_of_expert(again, 2), state_of_expert(state, 2))
    assert again["living"].all()


def test_all_experts_begin_with_the_weights_of_an_ordinary_run(fork_server, tmp_path):
    plain = [*VIRTUAL, "sync=bsp", "partition=shuffled", "hardware.workers=2", "steps=5"]
    first = trained(tmp_path, *plain)
    found = model_of(trained(tmp_path, *VIRTUAL, *STILL, "hardware.workers=2", f"weights={first.path}"))
    assert all(identical(state_of_expert(found, i), model_of(first)) for i in (0, 1))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (["hardware.workers=2"], r"holds the models of 3 experts.*sync=routed hardware.workers=3"),
        (["hardware.workers=3", "sync=bsp"], r"holds the models of 3 experts.*sync=routed hardware.workers=3"),
        (["hardware.workers=3", "model=mlp"], r"has .* as .*, where model=mlp has"),
    ],
)
def test_experts_are_refused_where_they_cannot_be_taken(learnt, how, says):
    with pytest.raises(ConfigError, match=says):
        engine.prepare([*VIRTUAL, *how, f"weights={learnt.path}"]).plan()


def test_experts_are_no_teacher_and_what_is_one_is_said(fork_server, tmp_path):
    logits = [*VIRTUAL, "hardware.workers=3", "task=cross_entropy"]
    experts_of = trained(tmp_path, *logits, "steps=1").path
    student = ["sync=bsp", "distillation=hinton", f"distillation.teacher={experts_of}"]
    says = r"^distillation.teacher=.* holds the models of 3 experts.*. Choose a run of one model, such as one of sync=b"
    with pytest.raises(ConfigError, match=says):
        engine.prepare([*logits, *student]).plan()


def test_experts_of_other_parts_are_refused(learnt, tmp_path):
    with pytest.raises(WorkerFailedError, match="holds experts of other parts of the data") as caught:
        engine.run(
            [*VIRTUAL, *STILL, "hardware.workers=3", "seed=5", f"weights={learnt.path}"], root=tmp_path, quiet=True
        )
    assert caught.value.exit_code == 2


@pytest.mark.slow
def test_a_checkpoint_of_experts_is_no_model(fork_server, tmp_path):
    run = trained(tmp_path, *REAL, "hardware.workers=2", "checkpoint.every_steps=3", "steps=3")
    [checkpoint] = (run.path / "checkpoints").iterdir()
    with pytest.raises(ConfigError, match=r"is a checkpoint of 2 experts .*--resume"):
        engine.prepare([*REAL, "hardware.workers=2", f"weights={checkpoint}"]).plan()


# -- what is refused


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (
            ["partition=shuffled"],
            r"sync=routed: .*partition=shuffled deals all samples anew.*Choose partition=clusters",
        ),
        (["strategy=pipeline"], r"sync=routed: evaluates the whole models of all replicas side by side,"),
        (["strategy=zero"], r"strategy=zero: owns its update, and sync=routed"),
        (["strategy.batch_norm=all"], r"strategy.batch_norm=all: waits for all replicas in every step, and"),
        (["adapt=lora"], r"sync=routed: .*adapt=lora.*Choose adapt=none"),
        (["average=ema"], r"average=ema: averages the weights that are evaluated, and sync=routed"),
        (["compress=topk"], r"compress=topk"),
        (["aggregate=median"], r"aggregate=median"),
        (["attack=sign_flip"], r"attack=sign_flip"),
        (["privacy=dp_sgd"], r"privacy=dp_sgd"),
        (
            ["model=gpt", "data=text", "task=cross_entropy", "partition.method=random", "data.limit=null"],
            r"sync=routed: routes a sample to the nearest centre.*tokens",
        ),
    ],
)
def test_what_does_not_go_with_it_is_refused_by_name(how, says):
    with pytest.raises(ConfigError, match=says) as caught:
        engine.prepare([*REAL, "hardware.workers=2", *how]).plan()
    assert caught.value.exit_code == 2


def test_all_that_does_not_go_with_it_is_told_at_once():
    wrong = ["partition=shuffled", "adapt=lora", "average=ema", "compress=topk", "aggregate=median"]
    with pytest.raises(ConfigError) as caught:
        engine.prepare([*REAL, "hardware.workers=2", *wrong]).plan()
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "average=ema",
        "compress=topk",
        "aggregate=median",
        "sync=routed",
        "sync=routed",
    ]


@pytest.mark.parametrize(
    "partition",
    [["dirichlet"], ["by_label"], ["clusters", "partition.method=random"], ["clusters", "partition.method=first_come"]],
)
def test_any_partition_that_leaves_replicas_their_own_samples_goes_with_it(fork_server, tmp_path, partition):
    name, *knobs = partition
    result = trained(tmp_path, *VIRTUAL, f"partition={name}", *knobs, "hardware.workers=3", "steps=3")
    assert model_of(result)["centres"].shape == (3, 1, 8, 8)
