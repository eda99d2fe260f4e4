"""What a model is worth to each client of a federation, and what each makes of it by itself."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.callbacks import ByClient, EvaluationView
from paceline.engine.callbacks.by_client import _over
from paceline.engine.config.compose import compose
from paceline.engine.planning.build import assemble
from paceline.exchange.seeded import generator
from paceline.tasks.base import Split
from paceline.tasks.clients import Clients, dealt_alike
from paceline.tasks.evaluation import evaluate
from paceline.tasks.losses import CrossEntropy

QUICK = ["hardware=virtual", "sync=fedavg", "tracking=none", "model.hidden=[16]", "data.limit=200", "batch_size=16"]
OWNED = [*QUICK, "hardware.workers=4", "partition=dirichlet", "partition.alpha=0.3"]
counts = st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=5)


@given(counts, st.lists(st.integers(0, 2), max_size=60))
def test_every_test_sample_of_a_label_that_somebody_has_goes_to_one_client_by_its_share(owned, labels):
    mine = [np.repeat([0, 1, 2], each) for each in owned]
    dealt = dealt_alike(mine, np.array(labels, dtype=np.int64))
    total = np.array(owned).sum(axis=0)
    expected = [i for i, label in enumerate(labels) if total[label] > 0]
    assert sorted(np.concatenate(dealt).tolist()) == expected
    for hand, each in zip(dealt, owned, strict=True):
        for label in range(3):
            got = sum(labels[i] == label for i in hand)
            if each[label] == 0:
                assert got == 0
            else:
                assert abs(got - each[label] / total[label] * labels.count(label)) <= 1


def made() -> tuple[EvaluationView, Split, list[torch.Tensor]]:
    """A model over three clients, each with two labels of four."""
    draws = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(90, 5, generator=draws), torch.randint(0, 4, (90,), generator=draws)
    train, test = Split(inputs[:60], labels[:60]), Split(inputs[60:], labels[60:])
    owned = [torch.tensor([i for i in range(60) if int(labels[i]) in mine]) for mine in ((0,), (1,), (2, 3))]
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)).eval()
    task = CrossEntropy()

    def judge(model, device, split=None):
        result = evaluate(task, model, test if split is None else split)
        return {"accuracy": result.score, "loss": result.loss}

    clients = Clients(train, test, owned)
    view = EvaluationView(1, 1.0, 1.0, {}, model, test, torch.device("cpu"), judge, clients, task.loss)
    return view, train, owned


def accuracies(view: EvaluationView, model: torch.nn.Module, labels: tuple[tuple[int, ...], ...]) -> list[float]:
    taken = view.test.take(slice(None))
    right = (model(taken.inputs).argmax(dim=-1) == taken.targets).float()
    mine = [torch.tensor([int(y) in own for y in taken.targets]) for own in labels]
    return [float(right[each].mean()) for each in mine]


def test_the_mean_the_spread_and_the_worst_are_those_of_a_plain_loop():
    view, *_ = made()
    callback = ByClient()
    callback.check("accuracy", ())
    with torch.no_grad():
        told, expected = callback.each_evaluation(view), accuracies(view, view.model, ((0,), (1,), (2, 3)))
    assert told == {
        "client_mean": pytest.approx(np.mean(expected)),
        "client_worst": pytest.approx(min(expected)),
        "client_spread": pytest.approx(np.std(expected)),
    }


@pytest.mark.parametrize(("clients", "worst"), [(1, 1), (9, 1), (10, 1), (19, 1), (20, 2), (25, 2), (100, 10)])
def test_the_worst_are_a_tenth_of_the_clients_and_one_at_least(clients: int, worst: int) -> None:
    values = [((7 * k) % clients) / clients for k in range(clients)]
    assert _over("client", values)["client_worst"] == pytest.approx(np.mean(sorted(values)[:worst]))


def test_a_personal_model_is_so_many_steps_of_sgd_on_a_clients_own_samples_and_the_models_weights_stay():
    view, train, owned = made()
    before = copy.deepcopy(view.model.state_dict())
    callback = ByClient(steps=30, lr=0.2, batch_size=4, seed=5)
    callback.check("accuracy", ())
    with torch.no_grad():
        told = callback.each_evaluation(view)
    expected = []
    for client, (mine, labels) in enumerate(zip(owned, ((0,), (1,), (2, 3)), strict=True)):
        model, draws = copy.deepcopy(view.model).train(), generator("by_client", 5, client)
        order: list[int] = []
        for _ in range(30):
            if len(order) < 4:
                order += torch.randperm(len(mine), generator=draws).tolist()
            batch, order = mine[order[:4]], order[4:]
            loss = F.cross_entropy(model(train.take(batch).inputs), train.take(batch).targets)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter -= 0.2 * gradient
        expected.append(accuracies(view, model.eval(), (labels,))[0])
    assert told["personal_mean"] == pytest.approx(np.mean(expected)) and told["personal_mean"] > told["client_mean"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in view.model.state_dict().items())


def test_only_what_is_asked_for_is_tuned():
    view, *_ = made()
    assert view.clients is not None
    personal = ByClient(steps=3, only=r"^2\.")._personal(view, 0, view.clients.train[0])
    old, new = view.model.state_dict(), personal.state_dict()
    assert {name for name in old if not torch.equal(old[name], new[name])} == {"2.weight", "2.bias"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["partition=shuffled"], "callbacks.by_client: looks at what each client owns, and partition=shuffled"),
        (
            ["sync=bsp", "partition=clusters", "data=diabetes", "task=squared"],
            "callbacks.by_client: deals the test split by its labels, and samples of data=diabetes do not have one",
        ),
        *(
            (
                [f"callbacks.by_client.{given}"],
                f"callbacks.by_client.{given}: says how each client tunes the model, and with steps=0 none tunes "
                f"anything. Choose steps, such as steps=10, or leave {given.partition('=')[0]} null",
            )
            for given in ("only=output", "lr=0.02", "batch_size=32")
        ),
        (
            ["callbacks.by_client.steps=1", "callbacks.by_client.only=nowhere"],
            "callbacks.by_client: only=nowhere: matches no parameter",
        ),
        (
            ["callbacks.by_client.steps=1", "callbacks.by_client.only='('"],
            "callbacks.by_client.only=(: must be a regular expression",
        ),
        (["callbacks.by_client.steps=-1"], "callbacks.by_client.steps=-1"),
    ],
)
def test_bad_input_is_refused_by_name(asked, said):
    with pytest.raises(ConfigError) as caught:
        assemble(compose([*QUICK, "partition=by_label", "callbacks=[by_client]", *asked]), ())
    assert str(caught.value).startswith(said)


@pytest.mark.slow
def test_a_run_shows_it_in_its_row_and_trains_as_without_it(tmp_path: Path):
    asked = [*OWNED, "steps=12", "checkpoint.every=0"]
    plain = engine.run(asked, root=tmp_path, quiet=True)
    seen = engine.run([*asked, "callbacks=[by_client]", "callbacks.by_client.steps=5"], root=tmp_path, quiet=True)
    assert plain is not None and seen is not None
    assert (plain.loss, plain.accuracy) == (seen.loss, seen.accuracy)
    [row] = seen._rows()
    assert 0 <= row["client_worst"] <= 1 and 0 <= row["client_spread"] <= 0.5 and 0 <= row["personal_mean"] <= 1
    last = seen.summary["metrics"]
    assert last["client_worst"] <= last["client_mean"] and "personal_worst" in last


def test_rounds_that_clients_left_are_counted_in_the_row(tmp_path: Path):
    result = engine.run([*QUICK, "sync.dropout=0.5", "epochs=6", "checkpoint.every=0"], root=tmp_path, quiet=True)
    assert result is not None and 0 < result.summary["left"] <= 12
    assert result._rows()[0]["left_rounds"] == result.summary["left"]


@pytest.mark.slow
def test_a_summary_tells_how_many_samples_of_each_label_a_replica_trains_on(tmp_path: Path):
    asked = [*QUICK, "partition=by_label", "hardware.workers=3", "steps=2", "checkpoint.every=0"]
    result = engine.run(asked, root=tmp_path, quiet=True)
    assert result is not None
    parts = assemble(compose(asked), ())
    train, partition = parts.load()[0], parts.deal()
    assert train.targets is not None
    told = [[int((train.targets[partition.owned(k)] == y).sum()) for y in range(10)] for k in range(3)]
    assert result.summary["labels"] == told
    assert sum(map(sum, told)) == 200 and all(row.count(0) >= 5 for row in told)
