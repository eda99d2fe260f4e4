"""The parameter server against Downpour's pseudocode, simulated in plain torch."""

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import (
    Case,
    Plan,
    Weights,
    adam,
    identical,
    mlp,
    momentum,
    replica_batch,
    serial,
    train,
    weights_of,
)
from torch import nn

from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.state import to_bytes
from paceline.strategies.sync.parameter_server import REQUEST, ParameterServer

pytestmark = pytest.mark.dist
OPTIMIZERS = [momentum, adam]


def run(workers, case: Case, push: int = 1, fetch: int = 1) -> list[dict[str, Any]]:
    """Workers' results, then the server's."""
    return workers(len(case.sizes[0]) + 1, train, Plan(DataParallel(), ParameterServer(push, fetch), case, [0, 1, 2]))


class Server:
    """The server's copy: applies each push at once."""

    def __init__(self, case: Case) -> None:
        self.model = case.start()
        self._optimizer = case.optimizer(self.model.parameters())
        self.version = 0

    def push(self, accrued: Weights) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.grad = accrued[name].clone()
        self._optimizer.step()
        self.version += 1


def gradient(model: nn.Module, case: Case, step: int, replica: int = 0) -> Weights:
    batch = replica_batch(case, step, replica)
    model.zero_grad()
    F.cross_entropy(model(batch.inputs), batch.targets).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def downpour(case: Case, n_push: int, n_fetch: int) -> tuple[Server, Counter[int]]:
    """One worker: fetch if n_fetch divides t; a += g; step w if no fetch follows; push a if n_push divides t + 1."""
    server, local = Server(case), case.start()
    optimizer = case.optimizer(local.parameters())
    accrued = {name: torch.zeros_like(p) for name, p in local.named_parameters()}
    staleness: Counter[int] = Counter()
    fetched = 0

    def push() -> None:
        staleness[server.version - fetched] += 1
        server.push(accrued)
        for value in accrued.values():
            value.zero_()

    for t in range(len(case.sizes)):
        if t % n_fetch == 0:
            local.load_state_dict(server.model.state_dict())
            fetched = server.version
        for name, g in gradient(local, case, t).items():
            accrued[name] += g
        if (t + 1) % n_fetch != 0:
            optimizer.step()
        if (t + 1) % n_push == 0:
            push()
    if len(case.sizes) % n_push != 0:  # what is left goes out at the end
        push()
    return server, staleness


# -- one worker


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_worker_that_pushes_and_fetches_each_step_is_serial_bit_for_bit(workers, optimizer):
    case = Case([[4], [4], [3], [1]], model=mlp, optimizer=optimizer)
    worker, server = run(workers, case)
    assert identical(worker["weights"], serial(case))
    assert identical(server["weights"], serial(case))
    assert server["report"] == {"staleness": {0: 4}}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("push", "fetch"), [(1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (4, 1), (1, 9), (9, 1)])
def test_one_worker_follows_downpours_pseudocode_bit_for_bit(workers, push, fetch, optimizer):
    case = Case([[4]] * 8, model=mlp, optimizer=optimizer)
    expected, staleness = downpour(case, push, fetch)
    worker, server = run(workers, case, push, fetch)
    assert identical(server["weights"], weights_of(expected.model))
    assert identical(worker["weights"], server["weights"])
    assert server["report"]["staleness"] == dict(staleness)


def test_pushing_and_fetching_less_often_changes_what_is_trained():
    case = Case([[4]] * 8, model=mlp)
    outcomes = [weights_of(downpour(case, p, f)[0].model) for p, f in [(1, 1), (2, 1), (1, 2), (2, 2), (2, 3)]]
    assert not any(identical(a, b) for i, a in enumerate(outcomes) for b in outcomes[:i])


# -- several workers


@pytest.mark.parametrize(("replicas", "push", "steps"), [(2, 1, 6), (3, 1, 5), (3, 2, 5)])
def test_the_version_is_the_number_of_pushes(workers, replicas, push, steps):
    """Every push is applied once, and has a staleness."""
    *trained, server = run(workers, Case([[2] * replicas] * steps, model=mlp), push=push)
    histogram = server["report"]["staleness"]
    assert sum(histogram.values()) == replicas * -(-steps // push)
    assert all(staleness >= 0 for staleness in histogram)
    assert all(identical(worker["weights"], server["weights"]) for worker in trained)


def one_push_counts_once(comm, pushes):
    """Each worker pushes gradients of ones at a rate of 1: the weights count them."""
    model = nn.Linear(2, 3, bias=False)
    nn.init.zeros_(model.weight)
    sync = ParameterServer()
    sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=1.0), comm)
    if comm.rank == comm.size - 1:
        sync.serve()
    else:
        batch = replica_batch(Case([[1] * (comm.size - 1)]), 0, comm.rank)
        for _ in range(pushes):
            sync.begin(batch)
            model.weight.grad = torch.ones_like(model.weight)
            sync.update()
        sync.finish()
    return model.weight.detach()


def test_no_push_is_lost_or_doubled_however_workers_interleave(workers):
    for weight in workers(4, one_push_counts_once, 50):
        assert torch.equal(weight, torch.full((3, 2), -150.0))


def take_turns(comm, case):
    """Workers in turn: only the holder of the token pushes, and fetches for its next step."""
    replicas = comm.size - 1
    of_workers = comm.split(0 if comm.rank < replicas else None)
    model = case.start()
    sync = ParameterServer()
    sync.prepare(dict(model.named_parameters()), case.optimizer(model.parameters()), comm)
    if of_workers is None:
        sync.serve()
        return {"weights": weights_of(model), "report": sync.report()}
    steps = len(case.sizes)
    token = torch.zeros(1)
    following, before = (comm.rank + 1) % replicas, (comm.rank - 1) % replicas
    sync.begin(replica_batch(case, 0, comm.rank))
    of_workers.barrier()  # all hold version 0
    for step in range(steps):
        batch = replica_batch(case, step, comm.rank)
        F.cross_entropy(model(batch.inputs), batch.targets).backward()
        if (comm.rank, step) != (0, 0):
            of_workers.recv(token, before)
        sync.update()
        if step + 1 < steps:
            sync.begin(replica_batch(case, step + 1, comm.rank))  # fetches
        else:
            sync.consensus()  # asks: the server has applied our push once it answers
        if (comm.rank, step) != (replicas - 1, steps - 1):
            of_workers.send(token, following)
    sync.finish()
    return {"weights": weights_of(model)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_equal_workers_in_turn_train_on_gradients_one_less_than_their_number_old(workers, replicas, optimizer):
    """Staleness P - 1 but for the first round, and the server's weights are those of the delayed recursion."""
    steps = 4
    case = Case([[3] * replicas] * steps, model=mlp, optimizer=optimizer)
    *_, server = workers(replicas + 1, take_turns, case)
    expected = Counter(range(replicas)) + Counter({replicas - 1: replicas * (steps - 1)})
    assert server["report"] == {"staleness": dict(expected)}

    simulated, copy = Server(case), case.start()
    fetched = [weights_of(copy) for _ in range(replicas)]
    for step in range(steps):
        for worker in range(replicas):
            copy.load_state_dict(fetched[worker])
            simulated.push(gradient(copy, case, step, worker))
            fetched[worker] = weights_of(simulated.model)
    assert identical(server["weights"], weights_of(simulated.model))


# -- what it looks at, keeps and costs


def peek(comm, case):
    model = case.start()
    sync = ParameterServer(push=2)
    sync.prepare(dict(model.named_parameters()), case.optimizer(model.parameters()), comm)
    if comm.rank == 1:
        sync.serve()
        return None
    seen = []
    for step in range(len(case.sizes)):
        batch = replica_batch(case, step, 0)
        sync.begin(batch)
        F.cross_entropy(model(batch.inputs), batch.targets).backward()
        sync.update()
        seen.append({name: tensor.clone() for name, tensor in sync.consensus().items()})
    sync.finish()
    return seen


def test_the_consensus_is_the_servers_copy_now_and_asking_changes_nothing(workers):
    case = Case([[4]] * 6, model=mlp)
    seen = workers(2, peek, case)[0]
    for step in range(6):
        pushed = Case(case.sizes[: (step + 1) // 2 * 2], model=mlp)
        expected = weights_of(downpour(pushed, 2, 1)[0].model) if pushed.sizes else weights_of(case.start())
        assert identical(seen[step], expected)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_worker_and_the_servers_optimizer_go_on_where_they_were_saved(workers, optimizer):
    case = Case([[4]] * 6, model=mlp, optimizer=optimizer)
    first = Case(case.sizes[:3], model=mlp, optimizer=optimizer)
    worker, server = run(workers, first)
    state = [to_bytes({"weights": server["weights"], "sync": worker["state"]})]
    resumed = workers(2, train, Plan(DataParallel(), ParameterServer(), case, state=state, start=3))
    assert identical(resumed[1]["weights"], serial(case))


@pytest.mark.parametrize(("push", "fetch"), [(1, 1), (2, 3), (3, 1)])
@pytest.mark.parametrize("replicas", [1, 3])
def test_stated_cost_is_what_a_step_sends(workers, replicas, push, fetch):
    steps = 6  # a multiple of every push and fetch
    case = Case([[1] * replicas] * steps, model=mlp)
    cost = ParameterServer(push, fetch).cost(list(mlp().parameters()), replicas)
    *trained, server = run(workers, case, push, fetch)
    size = 4 * sum(parameter.numel() for parameter in mlp().parameters())
    sent = steps // push * (size + REQUEST) + steps // fetch * REQUEST
    assert all(worker["ledger"] == {"send": sent} for worker in trained)
    assert cost.worker["send"] * steps == pytest.approx(sent)
    assert server["ledger"] == {"send": replicas * size * (steps // fetch)}
    assert cost.server["send"] * steps == pytest.approx(server["ledger"]["send"])
