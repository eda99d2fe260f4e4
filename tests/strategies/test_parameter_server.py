"""The parameter server against Downpour's pseudocode and BSP, simulated in plain torch, and against SSP's bounds."""

import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from math import inf, isnan, nan
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    ROUNDING,
    Case,
    Plan,
    TwoDtypes,
    Weights,
    adam,
    distance,
    identical,
    mlp,
    momentum,
    replica_batch,
    serial,
    train,
    weights_of,
)
from torch import Tensor, nn

from paceline import engine
from paceline.comm import Comm, PeerLostError
from paceline.strategies.base import Batch, World
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.errors import LayoutError
from paceline.strategies.exchange.clocks import Clocks
from paceline.strategies.exchange.server_shards import shards_of
from paceline.strategies.state import to_bytes
from paceline.strategies.sync.parameter_server import HEADER, ParameterServer

pytestmark = pytest.mark.dist
UNEVEN = [[4, 4, 4], [3, 3, 2], [1, 1, 0], [0, 0, 1], [2, 2, 2]]
ONE_WORKER = {  # each of them is serial training where there is one worker
    "asp": {},
    "asp, two servers": {"servers": 2},
    "asp, no lock": {"servers": 2, "lock": False},
    "ssp 0": {"staleness": 0},
    "ssp 2": {"staleness": 2},
    "synchronous": {"mode": "synchronous"},
    "synchronous, three servers": {"mode": "synchronous", "servers": 3},
}
AS_BSP = {
    "synchronous": {"mode": "synchronous"},
    "synchronous, two servers": {"mode": "synchronous", "servers": 2},
    "ssp 0": {"staleness": 0},
    "ssp 0, two servers": {"staleness": 0, "servers": 2},
}


def run(fabric, case: Case, state: list[bytes] | None = None, *, start: int = 0, **knobs: Any):
    """Workers' results, and the servers'."""
    sync, replicas = ParameterServer(**knobs), len(case.sizes[0])
    plan = Plan(DataParallel(), sync, case, [0, 1, 2], state, start)
    results = fabric(replicas + sync.servers, train, plan)
    return results[:replicas], results[replicas:]


class Server:
    """The server's copy: applies each push at once."""

    def __init__(self, case: Case) -> None:
        self.model = case.start()
        self._optimizer = case.optimizer(self.model.parameters())
        self.version = 0

    def push(self, accrued: Weights, share: float = 1.0) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.grad = accrued[name].clone()
        [group] = self._optimizer.param_groups
        rate = group["lr"]
        group["lr"] = share * rate
        self._optimizer.step()
        group["lr"] = rate
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


@pytest.mark.parametrize("knobs", ONE_WORKER.values(), ids=ONE_WORKER)
def test_one_worker_that_pushes_and_fetches_each_step_is_serial_bit_for_bit(fabric, knobs):
    case = Case([[4], [4], [3], [1]], model=mlp, optimizer=adam)
    [worker], servers = run(fabric, case, **knobs)
    assert identical(worker["weights"], serial(case))
    staleness = Counter[int]()
    for server in servers:
        staleness.update(server["report"]["staleness"])
    assert staleness == {0: 4 * (len(servers) if knobs.get("lock", True) else 1)}


@pytest.mark.parametrize(
    ("push", "fetch", "optimizer"),
    [
        (1, 2, momentum),
        (2, 1, adam),
        (2, 2, momentum),
        (2, 3, adam),
        (3, 2, momentum),
        (4, 1, adam),
        (1, 9, adam),
        (9, 1, momentum),
    ],
)
def test_one_worker_follows_downpours_pseudocode_bit_for_bit(fabric, push, fetch, optimizer):
    case = Case([[4]] * 8, model=mlp, optimizer=optimizer)
    expected, staleness = downpour(case, push, fetch)
    [worker], [server] = run(fabric, case, push=push, fetch=fetch)
    assert identical(server["weights"], weights_of(expected.model))
    assert identical(worker["weights"], server["weights"])
    assert server["report"]["staleness"] == dict(staleness)


@pytest.mark.parametrize(("servers", "lock"), [(2, True), (5, True), (3, False)])
def test_downpour_is_the_same_over_several_servers(virtual_workers, servers, lock):
    """Bit for bit: what an optimizer does to a parameter is its own affair."""
    case = Case([[4]] * 8, model=mlp, optimizer=adam)
    expected, _ = downpour(case, 2, 3)
    [worker], _ = run(virtual_workers, case, push=2, fetch=3, servers=servers, lock=lock)
    assert identical(worker["weights"], weights_of(expected.model))


def test_pushing_and_fetching_less_often_changes_what_is_trained():
    case = Case([[4]] * 8, model=mlp)
    outcomes = [weights_of(downpour(case, p, f)[0].model) for p, f in [(1, 1), (2, 1), (1, 2), (2, 2), (2, 3)]]
    assert not any(identical(a, b) for i, a in enumerate(outcomes) for b in outcomes[:i])


# -- synchronous, and SSP with s = 0: BSP


@pytest.mark.parametrize("knobs", AS_BSP.values(), ids=AS_BSP)
def test_a_step_is_that_of_one_worker_with_all_samples_uneven_and_empty_batches_too(fabric, knobs):
    case = Case(UNEVEN, optimizer=momentum)
    trained, servers = run(fabric, case, **knobs)
    assert all(distance(worker["weights"], serial(case)) < ROUNDING for worker in trained)
    pushes = sum(size > 0 for sizes in UNEVEN for size in sizes)
    assert all(server["report"]["staleness"] == {0: pushes} for server in servers)


@pytest.mark.parametrize("servers", [1, 2])
def test_workers_of_a_synchronous_server_agree_after_every_update(fabric, servers):
    trained, _ = run(fabric, Case(UNEVEN, model=mlp), mode="synchronous", servers=servers)
    for worker in trained[1:]:
        assert all(identical(a, b) for a, b in zip(worker["trajectory"], trained[0]["trajectory"], strict=True))


@pytest.mark.parametrize("knobs", AS_BSP.values(), ids=AS_BSP)
def test_so_it_is_with_an_optimizer_that_steps_once_a_step(virtual_workers, knobs):
    case = Case(UNEVEN, optimizer=adam)
    trained, _ = run(virtual_workers, case, **knobs)
    assert all(distance(worker["weights"], serial(case)) < ROUNDING for worker in trained)


def test_with_a_bound_above_0_it_is_another_training(virtual_workers):
    """So that the tests above can fail."""
    case = Case([[2, 2, 2]] * 4)
    trained, _ = run(virtual_workers, case, staleness=1)
    assert distance(trained[0]["weights"], serial(case)) > 1e-3


# -- several asynchronous workers


@pytest.mark.parametrize(("replicas", "push", "steps", "servers"), [(2, 1, 6, 1), (3, 1, 5, 2), (3, 2, 5, 1)])
def test_the_version_is_the_number_of_pushes(fabric, replicas, push, steps, servers):
    """Every push is applied once by each server, and has a staleness."""
    trained, told = run(fabric, Case([[2] * replicas] * steps, model=mlp), push=push, servers=servers)
    for server in told:
        histogram = server["report"]["staleness"]
        assert sum(histogram.values()) == replicas * -(-steps // push)
        assert all(staleness >= 0 for staleness in histogram)
    assert all(identical(worker["weights"], trained[0]["weights"]) for worker in trained)


def marking(**knobs: Any) -> ParameterServer:
    """Each push moves the weights by all of its gradient, so that it can be seen in them."""
    return ParameterServer(rate="full", **knobs)


class Marks(nn.Module):
    """Zeros, a place for each worker and step, twice."""

    def __init__(self, workers: int, steps: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(workers, steps, dtype=torch.float64))
        self.b = nn.Parameter(torch.zeros(workers, steps, dtype=torch.float64))


@dataclass(frozen=True)
class Paced:
    """Workers that mark, with a gradient of 1 at a rate of 1, who has computed which step: [worker][step] seconds."""

    sync: ParameterServer
    seconds: list[list[float]]
    pauses: list[list[float]] | None = None  # [worker][step] seconds before it fetches
    empty: frozenset[tuple[int, int]] = field(default_factory=frozenset)  # (worker, step) without samples
    dies: dict[int, tuple[int, str]] = field(default_factory=dict)  # worker -> (step, "before" or "within" its push)
    killed: bool = False  # it dies of SIGKILL; else `let_die` makes it look so

    @property
    def steps(self) -> int:
        return max(map(len, self.seconds))


def pace(comm: Comm, job: Paced) -> dict[str, Any]:
    """One worker's or server's life. Workers tell what they read, and when each step began and ended."""
    replicas = len(job.seconds)
    model, sync = Marks(replicas, job.steps), job.sync
    if job.dies and not job.killed and comm.rank >= replicas:
        let_die(comm)
    with comm.ledger.aside():
        sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=1.0), comm)
    if comm.rank >= replicas:
        sync.serve()
        return {"report": sync.report()}
    reads, begins, ends = [], [], []
    for step, seconds in enumerate(job.seconds[comm.rank]):
        size = 0 if (comm.rank, step) in job.empty else 1
        total = replicas - sum((other, step) in job.empty for other in range(replicas))
        if job.pauses is not None:
            comm.elapse(job.pauses[comm.rank][step])
        sync.begin(Batch(torch.empty(size, 1), torch.empty(size), total))
        begins.append(comm.now())
        reads.append(torch.stack([-model.a.detach(), -model.b.detach()]))
        comm.elapse(seconds)
        ends.append(comm.now())
        if size > 0:
            for parameter in (model.a, model.b):
                parameter.grad = torch.zeros_like(parameter)
                parameter.grad[comm.rank, step] = 1.0
        if job.dies.get(comm.rank, (-1, ""))[0] == step:
            die(comm, job.dies[comm.rank][1], sync, job.killed)
            return {}
        sync.update()
    sent = comm.ledger.snapshot()
    with comm.ledger.aside():
        sync.finish()
    final = torch.stack([-model.a.detach(), -model.b.detach()])
    return {"reads": reads, "begins": begins, "ends": ends, "final": final, "ledger": sent}


def random_seconds(workers: int, steps: int, mean: float, seed: int = 0) -> list[list[float]]:
    return np.random.default_rng(seed).exponential(mean, (workers, steps)).tolist()


@pytest.mark.parametrize("servers", [1, 2])
def test_no_push_is_lost_or_doubled_however_workers_interleave(fabric, servers):
    steps = 20
    results = fabric(4 + servers, pace, Paced(marking(servers=servers), [[0.0] * steps] * 4))
    for worker in results[:4]:
        assert torch.equal(worker["final"], torch.ones(2, 4, steps, dtype=torch.float64))


def test_pushes_of_a_megabyte_by_all_workers_to_all_servers_do_not_block_each_other(workers):
    assert [float(weight) for weight in workers(5, big_pushes)[:3]] == [-9.0] * 3


def big_pushes(comm: Comm) -> Tensor | None:
    model = nn.ParameterList([nn.Parameter(torch.zeros(300_000)) for _ in range(2)])
    sync = marking(servers=2)
    sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=1.0), comm)
    if comm.rank >= 3:
        sync.serve()
        return None
    for _ in range(3):
        sync.begin(Batch(torch.empty(1), torch.empty(1), 3))
        for parameter in model:
            parameter.grad = torch.ones_like(parameter)
        sync.update()
    sync.finish()
    assert torch.equal(model[0], model[1])
    return model[0][0].detach()


def take_turns(comm, case, rate):
    """Workers in turn: only the holder of the token pushes, and fetches for its next step."""
    replicas = comm.size - 1
    of_workers = comm.split(0 if comm.rank < replicas else None)
    model = case.start()
    sync = ParameterServer(rate=rate)
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
        # fetches: the server has applied our push once it answers
        sync.begin(replica_batch(case, min(step + 1, steps - 1), comm.rank))
        if (comm.rank, step) != (replicas - 1, steps - 1):
            of_workers.send(token, following)
    sync.finish()
    return {"weights": weights_of(model)}


@pytest.mark.parametrize("rate", ["share", "full"])
@pytest.mark.parametrize(("replicas", "optimizer"), [(2, adam), (3, momentum), (4, momentum)])
def test_equal_workers_in_turn_train_on_gradients_one_less_than_their_number_old(fabric, replicas, optimizer, rate):
    """Staleness P - 1 but for the first round, and the server's weights are those of the delayed recursion."""
    steps, sizes = 4, [3, 1, 4, 2][:replicas]
    case = Case([sizes] * steps, model=mlp, optimizer=optimizer)
    *_, server = fabric(replicas + 1, take_turns, case, rate)
    expected = Counter(range(replicas)) + Counter({replicas - 1: replicas * (steps - 1)})
    assert server["report"] == {"staleness": dict(expected), "lost": []}

    simulated, copy = Server(case), case.start()
    fetched = [weights_of(copy) for _ in range(replicas)]
    for step in range(steps):
        for worker in range(replicas):
            copy.load_state_dict(fetched[worker])
            share = sizes[worker] / sum(sizes) if rate == "share" else 1.0
            simulated.push(gradient(copy, case, step, worker), share)
            fetched[worker] = weights_of(simulated.model)
    assert identical(server["weights"], weights_of(simulated.model))


@pytest.mark.parametrize("knobs", [{}, {"staleness": 0}, {"staleness": 2}, {"servers": 2, "lock": False}], ids=str)
def test_pushes_take_the_share_of_the_rate_that_their_batch_has_of_the_samples(virtual_workers, knobs):
    """So that all of a step's move the weights as far as the mean over its samples does, at any bound."""
    sync = ParameterServer(**knobs)
    empty = frozenset({(0, 2), (1, 2), (2, 4)})
    job = Paced(sync, random_seconds(3, 6, 1.0), empty=empty)
    final = virtual_workers(3 + sync.servers, pace, job)[0]["final"][0]
    share = [[(i, c) not in empty and 1 / (3 - sum(at == c for _, at in empty)) for c in range(6)] for i in range(3)]
    assert torch.allclose(final, torch.tensor(share, dtype=torch.float64), atol=ROUNDING)


def test_an_asynchronous_batch_without_samples_neither_fetches_nor_pushes(virtual_workers):
    empty = frozenset({(0, 1), (0, 2), (1, 3)})
    zero, one, server = virtual_workers(3, pace, Paced(marking(), [[1.0] * 4, [1.5] * 4], empty=empty))
    each = 2 * 2 * 4 * 8 + 2 * HEADER  # [2 workers, 4 steps] float64, twice
    assert (zero["ledger"], one["ledger"]) == ({"send": 2 * each}, {"send": 3 * each})
    assert sum(server["report"]["staleness"].values()) == 5
    assert torch.equal(zero["reads"][2], zero["reads"][0])
    expected = torch.tensor([[1.0, 0, 0, 1], [1, 1, 1, 0]], dtype=torch.float64)
    assert torch.equal(zero["final"], expected.expand(2, 2, 4))


# -- SSP


def begun_too_early(
    results: list[dict[str, Any]], s: int, empty: frozenset[tuple[int, int]] = frozenset()
) -> list[tuple[int, int]]:
    """(worker, clock) of steps with samples that began before some worker had ended its step clock - s - 1."""
    return [
        (i, c)
        for i, one in enumerate(results)
        for c, begun in enumerate(one["begins"])
        if (i, c) not in empty
        and any(c > s and begun < other["ends"][c - s - 1] for other in results if len(other["ends"]) > c - s - 1)
    ]


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("s", [0, 1, 3])
def test_nobody_goes_on_at_clock_c_before_the_slowest_is_at_c_minus_s(fabric, s, servers):
    """The clock gap is at most s at every instant."""
    seconds = random_seconds(3, 8, 0.01)
    seconds[1] = [0.03 * (step < 4) for step in range(8)]  # slow, then fast: first it is waited for, then it waits
    *trained, _ = fabric(3 + servers, pace, Paced(marking(staleness=s, servers=servers), seconds))
    assert begun_too_early(trained[:3], s) == []


def test_without_the_bound_workers_do_begin_too_early(virtual_workers):
    """So that the test above can fail."""
    seconds = [[0.01] * 8, [0.03] * 8]
    *trained, _ = virtual_workers(3, pace, Paced(marking(staleness=3), seconds))
    assert begun_too_early(trained, 2) != []


@pytest.mark.parametrize("s", [1, 2, 5])
def test_a_fast_worker_gets_exactly_s_steps_ahead(virtual_workers, s):
    """With steps of 1 and 10 seconds: the fast one begins clock c when the slow one has ended c - s - 1."""
    fast, slow, _ = virtual_workers(3, pace, Paced(marking(staleness=s), [[1.0] * 12, [10.0] * 12]))
    for c in range(12):
        assert fast["begins"][c] == pytest.approx(c if c <= s else slow["ends"][c - s - 1], abs=0.01)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("s", [1, 3])
def test_a_read_at_clock_c_has_all_updates_to_c_minus_s_minus_1_its_own_and_none_from_c_plus_s_on(fabric, s, servers):
    workers, steps = 4, 8
    sync = marking(staleness=s, servers=servers)
    pauses = [[0.02] * steps, *random_seconds(workers - 1, steps, 0.002, seed=9)]  # the first fetches late
    job = Paced(sync, random_seconds(workers, steps, 0.01, seed=s), pauses)
    *trained, _ = fabric(workers + servers, pace, job)
    others_seen = 0.0
    for i, worker in enumerate(trained[:workers]):
        assert torch.equal(worker["final"], torch.ones(2, workers, steps, dtype=torch.float64))
        for c, read in enumerate(worker["reads"]):
            assert bool(((read == 0) | (read == 1)).all()), "an update is there once or not at all"
            assert bool((read[:, :, : max(c - s, 0)] == 1).all())
            assert bool((read[:, i, :c] == 1).all()), "its own"
            assert bool((read[:, :, c + s :] == 0).all())
            others_seen += float(read[0, :, max(c - s, 0) :].sum() - read[0, i, max(c - s, 0) :].sum())
    assert others_seen > 0  # those that the bound leaves to chance


def test_updates_of_workers_that_are_ahead_are_read_as_soon_as_the_bound_lets_them(virtual_workers):
    """s = 1: the fast worker has ended clock 1 at second 2, may not go on, and its update waits for the slow one."""
    fast, slow, server = virtual_workers(3, pace, Paced(marking(staleness=1), [[1.0] * 3, [5.0] * 3]))
    first, second, third = (read[0] for read in slow["reads"])
    assert first.sum() == 0
    assert torch.equal(second, torch.tensor([[1.0, 1, 0], [1, 0, 0]], dtype=torch.float64))
    assert torch.equal(third, torch.tensor([[1.0, 1, 1], [1, 1, 0]], dtype=torch.float64))
    assert torch.equal(fast["reads"][2][0], second)
    assert sum(server["report"]["staleness"].values()) == 6


def test_a_bound_that_nobody_reaches_is_no_bound(virtual_workers):
    """s = infinity is ASP: bit for bit, in the same order."""
    seconds = random_seconds(3, 10, 1.0)
    free, bounded = (virtual_workers(4, pace, Paced(marking(staleness=s), seconds)) for s in (None, 10))
    for one, other in zip(free[:3], bounded[:3], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one["reads"], other["reads"], strict=True))
        assert one["ends"] == other["ends"]
    assert free[3]["report"] == bounded[3]["report"]


@pytest.mark.parametrize("s", [0, 1, 2])
def test_workers_that_are_done_hold_nobody_back(fabric, s):
    seconds = [[0.0] * 2, [0.0] * 7, [0.005] * 5]
    *trained, _ = fabric(4, pace, Paced(marking(staleness=s), seconds))
    assert [len(worker["ends"]) for worker in trained] == [2, 7, 5]
    assert all(torch.equal(worker["final"], trained[0]["final"]) for worker in trained)
    assert begun_too_early(trained, s) == []


@pytest.mark.parametrize("s", [0, 2])
def test_batches_without_samples_move_the_clock(fabric, s):
    """Else worker 1, without samples in its first steps, would be waited for until it has as many pushes."""
    empty = frozenset({(1, 0), (1, 1), (1, 2), (0, 5)})
    *trained, _ = fabric(4, pace, Paced(marking(staleness=s), random_seconds(3, 6, 0.005), empty=empty))
    assert [len(worker["ends"]) for worker in trained] == [6, 6, 6]
    pushed = trained[0]["final"][0] > 0
    assert {(i, c) for i in range(3) for c in range(6) if not pushed[i, c]} == empty
    assert begun_too_early(trained, s, empty) == []


def test_saving_waits_until_the_worker_may_go_on(virtual_workers):
    """At s = 0: what replica 0 saves after its step has that step of all workers."""
    case = Case([[2, 2]] * 4, model=mlp)
    trained, _ = run(virtual_workers, Case(case.sizes[:2], model=mlp), staleness=0)
    state = [to_bytes({"weights": trained[0]["weights"], "sync": trained[0]["state"]})]
    resumed, _ = run(virtual_workers, case, state, start=2, staleness=0)
    straight, _ = run(virtual_workers, case, staleness=0)
    assert identical(resumed[1]["weights"], straight[1]["weights"])


# -- several servers


@pytest.mark.parametrize("servers", [2, 3])
def test_each_server_trains_its_own_run_of_parameters(virtual_workers, servers):
    case = Case([[2, 2]] * 3, model=mlp)
    trained, told = run(virtual_workers, case, servers=servers)
    final, start = trained[0]["weights"], weights_of(case.start())
    owners = {name: [i for i, s in enumerate(told) if torch.equal(s["weights"][name], final[name])] for name in final}
    assert all(len(owner) == 1 for owner in owners.values())
    order = [owner for [owner] in owners.values()]
    assert order == sorted(order) and set(order) == set(range(servers))
    for i, server in enumerate(told):
        assert all(torch.equal(server["weights"][n], start[n]) for n, [owner] in owners.items() if owner != i)


@given(st.data())
def test_runs_are_contiguous_whole_and_as_even_as_can_be(data):
    sizes = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=7))
    servers = data.draw(st.integers(1, len(sizes)))
    parameters = [torch.empty(size) for size in sizes]
    runs = shards_of(parameters, servers)
    assert [id(p) for run in runs for p in run] == [id(p) for p in parameters]
    assert len(runs) == servers and all(runs)
    cuts = combinations(range(1, len(sizes)), servers - 1)
    lightest = min(max(sum(sizes[a:b]) for a, b in zip((0, *c), (*c, len(sizes)), strict=True)) for c in cuts)
    assert max(sum(p.numel() for p in run) for run in runs) == lightest


@pytest.mark.parametrize("servers", [6, 9])
def test_more_servers_than_parameters_are_refused(servers):
    with pytest.raises(LayoutError, match=f"sync.servers={servers}.*there are 5.*<= 5"):
        ParameterServer(servers=servers).cost(list(mlp().parameters()), World(2))


# -- without the lock


def test_servers_without_a_lock_serve_the_same_weights(virtual_workers):
    """On the virtual clock no two write at once, so that no update is lost; each has the staleness of its clients."""
    seconds = random_seconds(5, 6, 1.0)
    *trained, _, _ = results = virtual_workers(7, pace, Paced(marking(servers=2, lock=False), seconds))
    for worker in trained:
        assert torch.equal(worker["final"], torch.ones(2, 5, 6, dtype=torch.float64))
    assert [sum(server["report"]["staleness"].values()) for server in results[5:]] == [18, 12]
    reads = trained[0]["reads"][-1][0]
    assert reads[1::2].sum() > 0  # what went through the other server


def test_what_servers_without_a_lock_lose_to_each_other_is_all_that_is_lost(workers):
    steps = 30
    results = workers(4, pace, Paced(marking(servers=2, lock=False), [[0.0] * steps] * 2))
    final = results[0]["final"]
    assert bool((final <= 1).all()) and bool((final >= 0).all())
    assert float(final.sum()) > 2 * steps  # of 4 steps: most of it is there
    assert torch.equal(results[1]["final"], final)


# -- deaths: by SIGKILL, and on the virtual cluster, where a worker's last message says that it is dead


def die(comm: Comm, how: str, sync: ParameterServer, killed: bool) -> None:
    if how == "within":
        for place in sync._places:
            comm.send(torch.ones(1, dtype=torch.float64), place.server)  # the header of a push, and nothing after it
    if killed:
        os.kill(os.getpid(), signal.SIGKILL)
    for place in sync._places:
        last = place.accrued if how == "within" else torch.zeros(1, dtype=torch.float64)
        comm.send(torch.full_like(last, nan), place.server)


def let_die(comm: Comm) -> None:
    """From here on `comm` behaves as a fabric does on which workers die."""
    recv, recv_any, send, lost = comm.recv, comm.recv_any, comm.send, set[int]()

    def check(tensor: Tensor, src: int) -> None:
        if isnan(float(tensor.flatten()[0])):
            lost.add(src)
            raise PeerLostError(f"worker {src} is dead", src)

    def receive(tensor: Tensor, src: int) -> None:
        recv(tensor, src)
        check(tensor, src)

    def receive_any(tensor: Tensor) -> int:
        src = recv_any(tensor)
        check(tensor, src)
        return src

    def send_to(tensor: Tensor, dst: int) -> None:
        if dst in lost:
            raise PeerLostError(f"worker {dst} is dead", dst)
        send(tensor, dst)

    comm.recv, comm.recv_any, comm.send, comm.lost = receive, receive_any, send_to, lambda: frozenset(lost)


def check_all_but_worker_1_from_step_3_on(results: list[Any], servers: int) -> None:
    zero, two, told = results[0], results[2], results[3:]
    assert [len(worker["ends"]) for worker in (zero, two)] == [6, 6]
    for worker in (zero, two):
        applied = worker["final"] > 0
        assert bool(applied[:, 0].all()) and bool(applied[:, 2].all())
        assert bool(applied[:, 1, :3].all()) and not bool(applied[:, 1, 3:].any())
    assert [server["report"]["lost"] for server in told] == [[1]] * servers


ASYNCHRONOUS = [{}, {"staleness": 0}, {"staleness": 2}, {"servers": 2, "staleness": 1}, {"servers": 2, "lock": False}]


@pytest.mark.parametrize("how", ["before", "within"])
@pytest.mark.parametrize("knobs", ASYNCHRONOUS[:4], ids=str)
def test_asynchronous_workers_go_on_without_one_that_dies(virtual_workers, knobs, how):
    sync = marking(**knobs)
    assert sync.survives
    job = Paced(sync, random_seconds(3, 6, 1.0), dies={1: (3, how)})
    check_all_but_worker_1_from_step_3_on(virtual_workers(3 + sync.servers, pace, job), sync.servers)


@pytest.mark.parametrize("how", ["before", "within"])
@pytest.mark.parametrize("knobs", ASYNCHRONOUS, ids=str)
def test_asynchronous_workers_go_on_without_one_that_is_killed(workers, knobs, how):
    sync = marking(**knobs)
    job = Paced(sync, random_seconds(3, 6, 0.01), dies={1: (3, how)}, killed=True)
    check_all_but_worker_1_from_step_3_on(workers(3 + sync.servers, pace, job, lost=[1]), sync.servers)


def test_at_s_0_the_mean_is_that_of_the_living(virtual_workers):
    """Two of three are left: each has half."""
    job = Paced(marking(staleness=0), [[1.0] * 4] * 3, dies={2: (1, "within")})
    final = virtual_workers(4, pace, job)[0]["final"][0]
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert torch.allclose(final[:, 0], third, atol=ROUNDING)
    assert torch.allclose(final[:2, 1:], torch.full((2, 3), 0.5, dtype=torch.float64), atol=ROUNDING)
    assert final[2, 1:].sum() == 0


@pytest.mark.parametrize(("knobs", "worker"), [({"mode": "synchronous"}, 1), ({}, 0)])
def test_a_synchronous_server_does_not_outlive_a_worker_nor_any_server_replica_0(virtual_workers, knobs, worker):
    with pytest.raises(PeerLostError, match=f"worker {worker} is dead"):
        virtual_workers(3, pace, Paced(marking(**knobs), [[1.0] * 4] * 2, dies={worker: (1, "before")}))


# -- what it looks at, keeps and costs


def peek(comm, case):
    model = case.start()
    sync = ParameterServer(push=2, fetch=3)
    sync.prepare(dict(model.named_parameters()), case.optimizer(model.parameters()), comm)
    if comm.rank == 1:
        sync.serve()
        return None
    messages = []
    for step in range(len(case.sizes)):
        batch = replica_batch(case, step, 0)
        sync.begin(batch)
        F.cross_entropy(model(batch.inputs), batch.targets).backward()
        sync.update()
        before = comm.ledger.messages.total()
        assert identical(sync.consensus(), weights_of(model))
        messages.append(comm.ledger.messages.total() - before)
    sync.finish()
    return messages


def test_the_consensus_is_replica_0s_own_copy_and_asks_nobody(fabric):
    assert fabric(2, peek, Case([[4]] * 6, model=mlp))[0] == [0] * 6


@pytest.mark.parametrize(
    "knobs",
    [{}, {"push": 2, "fetch": 3}, {"push": 4}, {"servers": 2}, {"servers": 2, "lock": False}, {"staleness": 1}],
    ids=str,
)
def test_a_worker_and_its_servers_go_on_where_they_were_saved(fabric, knobs):
    """After 3 of 7 steps, in the middle of what happens every few steps: as if there had been no interruption."""
    case = Case([[4]] * 7, model=mlp, optimizer=adam)
    trained, _ = run(fabric, Case(case.sizes[:3], model=mlp, optimizer=adam), **knobs)
    weights = trained[0]["trajectory"][-1]  # before the end's last push
    resumed, _ = run(fabric, case, [to_bytes({"weights": weights, "sync": trained[0]["state"]})], start=3, **knobs)
    straight, _ = run(fabric, case, **knobs)
    assert identical(resumed[0]["weights"], straight[0]["weights"])
    assert not identical(resumed[0]["weights"], weights)


@pytest.mark.parametrize("servers", [1, 2])
def test_a_synchronous_run_goes_on_where_replica_0_saved_it(fabric, servers):
    case = Case([[2, 2]] * 5, model=mlp, optimizer=adam)
    half, _ = run(fabric, Case(case.sizes[:2], model=mlp, optimizer=adam), mode="synchronous", servers=servers)
    assert half[1]["state"] == {}
    state = [to_bytes({"weights": half[0]["weights"], "sync": half[0]["state"]})]
    resumed, _ = run(fabric, case, state, start=2, mode="synchronous", servers=servers)
    straight, _ = run(fabric, case, mode="synchronous", servers=servers)
    assert all(identical(a["weights"], b["weights"]) for a, b in zip(resumed, straight, strict=True))


COSTS = [
    {"push": 1, "fetch": 1},
    {"push": 2, "fetch": 3},
    {"push": 3, "fetch": 1},
    {"push": 2, "fetch": 3, "servers": 2},
    {"servers": 3, "lock": False},
    {"staleness": 0},
    {"staleness": 2, "servers": 2},
    {"mode": "synchronous"},
    {"mode": "synchronous", "servers": 3},
]


@pytest.mark.parametrize("knobs", COSTS, ids=str)
def test_stated_cost_is_what_a_step_sends(fabric, knobs):
    replicas, steps = 3, 6  # a multiple of every push and fetch
    sync = ParameterServer(**knobs)
    cost = sync.cost(list(mlp().parameters()), World(replicas))
    trained, servers = run(fabric, Case([[1] * replicas] * steps, model=mlp), **knobs)
    size = 4 * sum(parameter.numel() for parameter in mlp().parameters())
    push, fetch = knobs.get("push", 1), knobs.get("fetch", 1)
    told = sync.servers if sync.lock else 1
    asks = 0 if sync.synchronous else steps // fetch
    sent = steps // push * (size + HEADER * told) + asks * HEADER * told
    assert all(worker["ledger"] == {"send": sent} for worker in trained)
    assert cost.worker["send"] * steps == pytest.approx(sent)
    answers = sum(server["ledger"].get("send", 0) for server in servers)
    assert answers == replicas * size * (steps // fetch)
    assert cost.server["send"] * sync.servers * steps == pytest.approx(answers)


def test_stated_buffers_are_those_that_a_worker_holds(virtual_workers):
    stated = ParameterServer().cost(list(mlp().parameters()), World(1)).buffers
    assert virtual_workers(2, buffers_of)[0] == stated


def buffers_of(comm):
    model, sync = mlp(), ParameterServer()
    sync.prepare(dict(model.named_parameters()), momentum(model.parameters()), comm)
    return sum(buffer.numel() * buffer.element_size() for buffer in sync.buffers())


# -- refusals


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"mode": "synchronous", "push": 2}, r"sync.push=2.*sync=asp"),
        ({"mode": "synchronous", "fetch": 3}, r"sync.fetch=3.*sync=asp"),
        ({"mode": "synchronous", "staleness": 0}, r"sync.staleness=0.*sync=ssp"),
        ({"staleness": 1, "fetch": 2}, r"sync.fetch=2.*sync.staleness=1.*sync=asp"),
        ({"staleness": 1, "push": 2}, r"sync.push=2.*sync.staleness=1.*sync=asp"),
        ({"staleness": 1, "lock": False}, r"sync.lock=false.*sync=asp"),
        ({"mode": "synchronous", "lock": False}, r"sync.lock=false.*sync=asp"),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_would(knobs, words):
    with pytest.raises(LayoutError, match=words) as caught:
        ParameterServer(**knobs)
    assert caught.value.exit_code == 2


def test_a_model_of_two_dtypes_is_refused():
    with pytest.raises(LayoutError, match="sync=bsp takes several"):
        ParameterServer().cost(list(TwoDtypes().parameters()), World(2))


# -- clocks


@given(st.integers(1, 5), st.data())
def test_the_slowest_clock_is_the_least_of_those_that_are_going(workers, data):
    clocks, expected, going = Clocks(workers), [0] * workers, set(range(workers))
    for worker, leaves in data.draw(st.lists(st.tuples(st.integers(0, workers - 1), st.booleans()), max_size=40)):
        if leaves:
            clocks.leave(worker)
            going.discard(worker)
        elif worker in going:
            clocks.tick(worker)
            expected[worker] += 1
        assert clocks.slowest == min((expected[worker] for worker in going), default=inf)
        assert clocks.going == going
        assert [clocks.of(worker) for worker in range(workers)] == expected


# -- whole runs


def mean_accuracy(root, *choices):
    """At the end, over three seeds: where an asynchronous run's last step ends is up to others' pushes, too."""
    settings = (*choices, "tracking=none", "hardware.device=cpu", "hardware.threads=1")
    runs = [engine.run([*settings, f"seed={seed}"], root=root, quiet=True) for seed in range(3)]
    return mean(run.accuracy for run in runs)


@pytest.fixture(scope="module")
def serial_accuracy(tmp_path_factory):
    return mean_accuracy(tmp_path_factory.mktemp("runs"), "strategy=single", "batch_size=64")


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice",
    [
        ("sync=parameter_server",),
        ("sync=asp",),
        ("sync=ssp",),
        ("sync=ssp", "sync.staleness=0", "sync.servers=2"),
        ("sync=asp", "sync.lock=false", "sync.servers=2"),
    ],
    ids=" ".join,
)
def test_digits_are_learnt_as_well_as_serially(fork_server, tmp_path, serial_accuracy, choice):
    assert mean_accuracy(tmp_path, *choice, "hardware.workers=2") > serial_accuracy - 0.02
