"""Backup workers: every update is the mean of the first N gradients of one version, and nobody waits for the rest."""

import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracles import (
    ROUNDING,
    Case,
    Plan,
    TwoDtypes,
    adam,
    distance,
    identical,
    mlp,
    momentum,
    replacing,
    replica_batch,
    serial,
    train,
    weights_of,
)
from torch import nn

from paceline import engine
from paceline.batches import lone
from paceline.comm import Comm
from paceline.conf.errors import ConfigError
from paceline.strategies.core.batch import Batch
from paceline.strategies.core.cost import World
from paceline.strategies.core.state import from_bytes, to_bytes
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync.backup_workers import ANSWER, HEADER, BackupWorkers

pytestmark = pytest.mark.dist
UNEVEN = [[4, 4, 4], [3, 3, 2], [1, 1, 0], [0, 0, 1], [2, 2, 2]]


@dataclass(frozen=True)
class Job:
    """Workers that mark, with a gradient of 1 at a rate of 1, who has computed which version.

    `seconds`: [worker][version]. `sizes`: [version][worker] samples; None: one each. `leaves`: worker -> the step
    before which it is told to stop. `die`: workers that SIGKILL ends in their first step, which nobody leaves out.
    `gives_up`: a straggler stops computing when, by everybody's `seconds`, the version is closed.
    """

    backups: int
    seconds: list[list[float]]
    sizes: list[list[int]] | None = None
    leaves: dict[int, int] = field(default_factory=dict)
    die: tuple[int, ...] = ()
    gives_up: bool = False

    @property
    def workers(self) -> int:
        return len(self.seconds)

    @property
    def versions(self) -> int:
        return len(self.seconds[0])

    @property
    def needed(self) -> int:
        return self.workers - self.backups

    def takes(self, worker: int, version: int) -> float:
        own = self.seconds[worker][version]
        if not self.gives_up:
            return own
        closed = sorted(seconds[version] for seconds in self.seconds)[self.needed - 1]
        return min(own, closed + 1e-3)


def work(comm: Comm, job: Job) -> dict[str, Any]:
    """One worker's or the server's life, as the engine's loop makes it."""
    rank, serves = comm.rank, comm.rank == job.workers
    model = nn.ParameterList([torch.zeros(job.workers, job.versions, dtype=torch.float64)])
    sync = BackupWorkers(job.backups)
    with comm.ledger.aside():
        sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=1.0), comm)
    if serves:
        sync.serve()
        return {"report": sync.report(), "final": -model[0].detach(), "ledger": comm.ledger.snapshot()}
    done, steps, ends = 0, [], []
    while (step := sync.next_step(done)) < job.versions:
        if step >= job.leaves.get(rank, job.versions):
            break
        sizes = [1] * job.workers if job.sizes is None else job.sizes[step]
        sync.begin(Batch(torch.empty(sizes[rank], 1), torch.empty(sizes[rank]), sum(sizes)))
        assert bool((model[0].detach()[:, step:] == 0).all()), "the weights are of this version"
        if rank in job.die:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.elapse(job.takes(rank, step))
        if sizes[rank] > 0:
            model[0].grad = torch.zeros_like(model[0])
            model[0].grad[rank, step] = 1.0
        sync.update()
        steps.append(step)
        ends.append(comm.now())
        done = step + 1
    ledger = comm.ledger.snapshot()
    with comm.ledger.aside():
        sync.finish()
    return {"steps": steps, "ends": ends, "final": -model[0].detach(), "ledger": ledger}


def run(fabric, case: Case, backups: int, state: list[bytes] | None = None, start: int = 0):
    """Workers' results, then the server's."""
    replicas = len(case.sizes[0])
    return fabric(replicas + 1, train, Plan(DataParallel(), BackupWorkers(backups), case, [0, 1, 2], state, start))


# -- no backups: BSP


@pytest.mark.parametrize("optimizer", [momentum, adam, replacing])
def test_without_backups_a_step_is_that_of_one_worker_with_all_samples(fabric, optimizer):
    case = Case(UNEVEN, optimizer=optimizer)
    *trained, server = run(fabric, case, 0)
    assert all(distance(worker["weights"], serial(case)) < ROUNDING for worker in trained)
    for worker in trained[1:]:
        assert all(identical(a, b) for a, b in zip(worker["trajectory"], trained[0]["trajectory"], strict=True))
    assert server["report"] == {"staleness": {0: 12}, "dropped": 0, "lost": []}


def test_one_worker_alone_is_serial_bit_for_bit(fabric):
    case = Case([[4], [3], [1]], model=mlp, optimizer=adam)
    assert identical(run(fabric, case, 0)[0]["weights"], serial(case))


# -- which gradients are used


@pytest.mark.parametrize("backups", [1, 2])
def test_a_version_is_the_mean_of_exactly_n_gradients_and_there_are_as_many_versions_as_steps(fabric, backups):
    workers, versions = 4, 12
    seconds = np.random.default_rng(backups).exponential(0.005, (workers, versions)).tolist()
    *trained, server = fabric(workers + 1, work, Job(backups, seconds))
    final, needed = server["final"], workers - backups
    assert set(final.unique().tolist()) <= {0.0, 1 / needed}
    assert torch.equal((final > 0).sum(0), torch.full((versions,), needed))
    pushes = sum(len(worker["steps"]) for worker in trained)
    assert server["report"]["staleness"] == {0: needed * versions}
    assert server["report"]["dropped"] == pushes - needed * versions
    assert all(torch.equal(worker["final"], final) for worker in trained)


def be_late(comm: Comm) -> dict[str, Any]:
    """Of three workers the last ends its step when the first has begun the third version from then, and not before."""
    versions, sync = 7, BackupWorkers(1)
    of_workers = comm.split(0 if comm.rank < 3 else None)
    model = nn.ParameterList([torch.zeros(3, versions)])
    sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=1.0), comm)
    if of_workers is None:
        sync.serve()
        return {"report": sync.report(), "used": model[0].detach() != 0}
    token, steps, done = torch.zeros(1), [], 0
    while (step := sync.next_step(done)) < versions:
        sync.begin(Batch(torch.empty(1, 1), torch.empty(1), 3))
        model[0].grad = torch.zeros_like(model[0])
        model[0].grad[comm.rank, step] = 1.0
        if comm.rank == 0 and step % 3 == 0:
            if step > 0:
                of_workers.send(token, 2)  # end your step
            of_workers.recv(token, 2)  # until it has begun this version
        if comm.rank == 2:
            of_workers.send(token, 0)
            of_workers.recv(token, 0)
        sync.update()
        steps.append(step)
        done = step + 1
    if comm.rank == 0:
        of_workers.send(token, 2)
    sync.finish()
    return {"steps": steps}


def test_the_first_n_are_used_and_the_late_ones_jump_to_the_newest_version(fabric):
    zero, one, two, server = fabric(4, be_late)
    assert zero["steps"] == one["steps"] == list(range(7))
    assert two["steps"] == [0, 3, 6]
    assert torch.equal(server["used"], torch.tensor([[True], [True], [False]]).expand(3, 7))
    assert server["report"] == {"staleness": {0: 14}, "dropped": 3, "lost": []}


def test_who_is_among_the_first_changes_with_who_is_late(virtual_workers):
    slow, fast = 5.0, 1.0
    seconds = [[fast, slow, fast, fast], [slow, fast, fast, slow], [fast, fast, slow, fast]]
    server = virtual_workers(4, work, Job(1, seconds, gives_up=True))[-1]
    late = torch.tensor([[False, True, False, False], [True, False, False, True], [False, False, True, False]])
    assert torch.equal(server["final"] == 0, late)


def simulate(case: Case, seconds: list[float], needed: int) -> dict[str, torch.Tensor]:
    """Worker i takes seconds[i] a step, messages take none: the first `needed` gradients of each version, in order."""
    server = case.start()
    optimizer = case.optimizer(server.parameters())
    workers, version = len(seconds), 0
    copies, labels, ends = [case.start() for _ in seconds], [0] * workers, list(seconds)
    sums: Any = Counter[str]()
    shares, given = 0.0, list[int]()
    while version < len(case.sizes):
        i = min(range(workers), key=lambda i: (ends[i], i))
        now, ends[i] = ends[i], float("inf")
        batch = replica_batch(case, labels[i], i)
        copies[i].zero_grad()
        F.cross_entropy(copies[i](batch.inputs), lone(batch.targets)).backward()
        fresh = labels[i] == version
        if fresh:
            given.append(i)
            shares += batch.share
            for name, parameter in copies[i].named_parameters():
                assert parameter.grad is not None
                sums[name] = sums[name] + parameter.grad * batch.share
        if fresh and len(given) == needed:
            for name, parameter in server.named_parameters():
                parameter.grad = sums[name] / shares
            optimizer.step()
            version += 1
            answered, sums, shares, given = given, Counter(), 0.0, []
        else:
            answered = [] if fresh else [i]
        for j in answered:
            copies[j].load_state_dict(server.state_dict())
            labels[j], ends[j] = version, now + seconds[j]
    return weights_of(server)


@dataclass(frozen=True)
class Timed:
    case: Case
    seconds: list[float]
    backups: int


def train_timed(comm: Comm, job: Timed) -> dict[str, torch.Tensor]:
    model, sync = job.case.start(), BackupWorkers(job.backups)
    with comm.ledger.aside():
        sync.prepare(dict(model.named_parameters()), job.case.optimizer(model.parameters()), comm)
    if comm.rank == len(job.seconds):
        sync.serve()
        return weights_of(model)
    done = 0
    while (step := sync.next_step(done)) < len(job.case.sizes):
        batch = replica_batch(job.case, step, comm.rank)
        sync.begin(batch)
        F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
        comm.elapse(job.seconds[comm.rank])
        sync.update()
        done = step + 1
    sync.finish()
    return weights_of(model)


@pytest.mark.parametrize("optimizer", [momentum, adam])
@pytest.mark.parametrize("backups", [0, 1, 2])
def test_training_is_that_of_a_simulation_of_who_is_first(virtual_workers, backups, optimizer):
    """Uneven batches, so that the mean is one over samples."""
    seconds = [1.0, 1.37, 2.91, 1.83]
    case = Case([[3, 2, 4, 1]] * 9, optimizer=optimizer)
    results = virtual_workers(5, train_timed, Timed(case, seconds, backups))
    expected = simulate(case, seconds, 4 - backups)
    assert all(distance(weights, expected) < ROUNDING for weights in results)


# -- batches without samples, early leavers, deaths


def test_batches_without_samples_are_no_gradients_and_hold_nobody_up(fabric):
    """Two of three are needed; where fewer have samples, as many as have any."""
    sizes = [[1, 1, 1], [1, 0, 0], [0, 1, 1], [0, 0, 1], [1, 1, 0]]
    seconds = [[0.0] * 5, [0.002] * 5, [0.004] * 5]
    *trained, server = fabric(4, work, Job(1, seconds, sizes))
    used = (server["final"] > 0).sum(0).tolist()
    assert used == [2, 1, 2, 1, 2]
    assert torch.allclose(server["final"].sum(0), torch.ones(5, dtype=torch.float64), atol=ROUNDING)
    assert all(torch.equal(worker["final"], server["final"]) for worker in trained)


@pytest.mark.parametrize("leaves", [{1: 3}, {0: 2, 1: 3}, {0: 2, 2: 4, 1: 4}, {0: 0, 1: 0, 2: 0}], ids=str)
def test_nobody_waits_for_ever_for_those_who_were_told_to_stop(fabric, leaves):
    """Those who stay go on with the gradients that there are."""
    *trained, server = fabric(4, work, Job(1, [[0.001] * 6, [0.002] * 6, [0.003] * 6], leaves=leaves))
    for rank, worker in enumerate(trained):
        assert all(step < leaves.get(rank, 6) for step in worker["steps"])
        assert torch.equal(worker["final"], server["final"])
    used = (server["final"] > 0).sum(0)
    assert bool((used[: min(leaves.values())] == 2).all())
    assert torch.equal(server["final"].sum(0) > 0, torch.arange(6) < (6 if len(leaves) < 3 else max(leaves.values())))


def test_it_goes_on_without_as_many_workers_as_there_are_backups(workers):
    assert BackupWorkers(1).traits.survives
    zero, _, two, server = workers(4, work, Job(1, [[0.005] * 6] * 3, die=(1,)), lost=[1])
    assert zero["steps"][-1] == 5 and two["steps"][-1] == 5
    assert torch.equal((server["final"] > 0).sum(0), torch.full((6,), 2))
    assert not bool((server["final"][1] > 0).any())
    assert server["report"]["lost"] == [1]


@pytest.mark.slow
def test_with_more_deaths_than_backups_it_ends_and_names_the_dead(workers):
    with pytest.raises(
        AssertionError, match=r"TooFewClientsError: replicas 1, 2 died: 2 of 4 are left, and a step takes 3 gradients"
    ):
        workers(5, work, Job(1, [[0.005] * 6] * 4, die=(1, 2)), lost=[1, 2])


def test_without_backups_a_death_ends_the_run():
    assert not BackupWorkers(0).traits.survives


# -- how long a step takes


some_of_n = pytest.mark.parametrize(
    ("needed", "backups"), [(4, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(4, 0), (6, 2), (3, 5)])]
)


def order_statistic(n: int, backups: int) -> float:
    """The mean of the n-th least of n + backups times that are Exp(1): H_{n+b} - H_b."""
    return sum(1 / i for i in range(backups + 1, n + backups + 1))


@some_of_n
@pytest.mark.slow
def test_a_step_of_exponential_workers_takes_the_order_statistic_where_stragglers_give_up(
    virtual_workers, needed, backups
):
    workers, versions = needed + backups, 600
    seconds = np.random.default_rng(0).exponential(1.0, (workers, versions))
    results = virtual_workers(workers + 1, work, Job(backups, seconds.tolist(), gives_up=True))
    took = max(worker["ends"][-1] for worker in results[:-1]) / versions
    closed = np.sort(seconds, axis=0)[needed - 1]
    assert took == pytest.approx(closed.mean(), abs=3e-3)  # giving up and messages take a little
    error = closed.std() / versions**0.5
    assert took == pytest.approx(order_statistic(needed, backups), abs=4 * error)


@some_of_n
@pytest.mark.slow
def test_a_step_takes_longer_where_stragglers_finish_what_they_have_begun(virtual_workers, needed, backups):
    """They begin the next version late: N times that are Exp(1), and b that are Gamma(2, 1)."""
    workers, versions = needed + backups, 600
    rng = np.random.default_rng(1)
    seconds = rng.exponential(1.0, (workers, versions))
    results = virtual_workers(workers + 1, work, Job(backups, seconds.tolist()))
    took = max(worker["ends"][-1] for worker in results[:-1]) / versions
    many = 200_000
    times = np.concatenate([rng.exponential(1.0, (needed, many)), rng.gamma(2.0, 1.0, (backups, many))])
    expected = np.sort(times, axis=0)[needed - 1]
    assert took == pytest.approx(expected.mean(), abs=4 * expected.std() / versions**0.5)
    if backups:
        assert expected.mean() > order_statistic(needed, backups) + 4 * expected.std() / versions**0.5
        assert took < order_statistic(workers, 0)  # and is worth it: without backups all would be waited for


# -- what it keeps and costs


def resume(fabric, case: Case, backups: int, after: int):
    first = Case(case.sizes[:after], case.model, case.optimizer)
    worker = run(fabric, first, backups)[0]
    state = [to_bytes({"weights": worker["trajectory"][-1], "sync": worker["state"]})]
    return run(fabric, case, backups, state, after), from_bytes(state[0])


@pytest.mark.parametrize(("replicas", "backups"), [(1, 0), (2, 0)])
def test_a_run_goes_on_where_replica_0_saved_it(fabric, replicas, backups):
    case = Case([[3] * replicas] * 5, model=mlp, optimizer=adam)
    resumed, saved = resume(fabric, case, backups, 2)
    assert saved["sync"]["version"] == 2
    straight = run(fabric, case, backups)
    assert all(identical(a["weights"], b["weights"]) for a, b in zip(resumed, straight, strict=True))
    assert [len(worker["losses"]) for worker in resumed[:-1]] == [3] * replicas


def test_a_run_that_is_resumed_behind_the_servers_version_jumps_to_it(virtual_workers):
    """Replica 0 saved when the others were further on: the state, not the step to start with, says where to go on."""
    case = Case([[2, 2, 2]] * 6, model=mlp)
    worker = run(virtual_workers, Case(case.sizes[:4], model=mlp), 1)[0]
    state = to_bytes({"weights": weights_of(case.start()), "sync": worker["state"]})
    version = from_bytes(state)["sync"]["version"]
    *trained, server = run(virtual_workers, case, 1, [state], 1)
    assert sum(server["report"]["staleness"].values()) == 2 * (6 - version)
    assert all(len(worker["losses"]) <= 6 - version for worker in trained)


def look(comm: Comm, case: Case) -> list[int] | None:
    model, sync = case.start(), BackupWorkers(1)
    sync.prepare(dict(model.named_parameters()), case.optimizer(model.parameters()), comm)
    if comm.rank == 2:
        sync.serve()
        return None
    messages, done = [], 0
    while (step := sync.next_step(done)) < len(case.sizes):
        batch = replica_batch(case, step, comm.rank)
        sync.begin(batch)
        F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
        sync.update()
        before = comm.ledger.messages.total()
        assert identical(sync.consensus(), weights_of(model))
        messages.append(comm.ledger.messages.total() - before)
        done = step + 1
    sync.finish()
    return messages


def test_the_consensus_is_replica_0s_copy_and_asks_nobody(fabric):
    messages = fabric(3, look, Case([[2, 2]] * 4, model=mlp))[0]
    assert messages and not any(messages)


@pytest.mark.parametrize("backups", [0, 1])
def test_stated_cost_is_what_each_step_of_a_worker_sends(fabric, backups):
    """Whether its gradient is used or dropped."""
    replicas = 3
    *trained, server = run(fabric, Case([[1] * replicas] * 6, model=mlp), backups)
    cost = BackupWorkers(backups).cost(list(mlp().parameters()), World(replicas))
    size = 4 * sum(parameter.numel() for parameter in mlp().parameters())
    steps = [len(worker["losses"]) for worker in trained]
    assert [worker["ledger"] for worker in trained] == [{"send": n * (size + HEADER)} for n in steps]
    assert server["ledger"] == {"send": sum(steps) * (size + ANSWER)}
    assert cost.worker == {"send": size + HEADER}
    assert cost.server == {"send": replicas * (size + ANSWER)}
    assert cost.buffers == size


# -- refusals


@pytest.mark.parametrize(("backups", "replicas"), [(1, 1), (2, 2), (5, 3)])
def test_as_many_backups_as_replicas_are_refused(backups, replicas):
    with pytest.raises(ConfigError, match=rf"sync.backups={backups}.*<= {replicas - 1}") as caught:
        BackupWorkers(backups).cost(list(mlp().parameters()), World(replicas))
    assert caught.value.exit_code == 2


def test_a_model_of_two_dtypes_is_refused():
    with pytest.raises(ConfigError, match="sync=bsp takes several"):
        BackupWorkers().cost(list(TwoDtypes().parameters()), World(2))


# -- whole runs


@pytest.mark.slow
def test_digits_are_learnt_as_well_as_serially(fork_server, tmp_path):
    settings = ("tracking=none", "hardware.device=cpu", "hardware.threads=1")
    alone = engine.run(["strategy=single", *settings], root=tmp_path, quiet=True)
    backed = engine.run(["sync=backup_workers", "hardware.workers=2", *settings], root=tmp_path, quiet=True)
    assert alone is not None and backed is not None
    assert alone.accuracy is not None and backed.accuracy is not None
    assert backed.accuracy > alone.accuracy - 0.02
    used, dropped = backed.summary["staleness"]["histogram"], backed.summary["dropped"]
    assert used == {"0": backed.summary["steps"]}
    assert dropped >= 0
