"""What holds of every mode with parameter servers: serial where alone, states, costs, deaths, several servers."""

from collections import Counter
from itertools import combinations
from statistics import mean
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import ROUNDING, Case, TwoDtypes, adam, distance, identical, mlp, momentum, replacing, serial, weights_of
from served import UNEVEN, Paced, pace, random_seconds, run

from paceline import engine
from paceline.comm import PeerLostError
from paceline.conf.errors import ConfigError
from paceline.exchange.aggregate import Median
from paceline.exchange.compress import TopK
from paceline.exchange.pushing import HEADER
from paceline.exchange.server_shards import shards_of
from paceline.strategies.core.cost import World
from paceline.strategies.core.errors import TooFewClientsError
from paceline.strategies.core.state import from_bytes, to_bytes
from paceline.strategies.sync.downpour import Downpour
from paceline.strategies.sync.parameter_server import ParameterServer
from paceline.strategies.sync.ssp import SSP

pytestmark = pytest.mark.dist
ALL = {"asp": Downpour(), "ssp": SSP(2), "synchronous": ParameterServer()}
ONE_WORKER = {  # each of them is serial training where there is one worker
    "asp": Downpour(),
    "asp, two servers": Downpour(servers=2),
    "asp, no lock": Downpour(servers=2, lock=False),
    "ssp 0": SSP(0),
    "ssp 2": SSP(2),
    "ssp without a bound": SSP(None),
    "synchronous": ParameterServer(),
    "synchronous, three servers": ParameterServer(servers=3),
}
AS_BSP = {
    "synchronous": ParameterServer(),
    "synchronous, two servers": ParameterServer(servers=2),
    "ssp 0": SSP(0),
    "ssp 0, two servers": SSP(0, servers=2),
}


@pytest.mark.parametrize("sync", ONE_WORKER.values(), ids=list(ONE_WORKER))
def test_one_worker_that_pushes_and_fetches_each_step_is_serial_bit_for_bit(fabric, sync):
    case = Case([[4], [4], [3], [1]], model=mlp, optimizer=adam)
    [worker], servers = run(fabric, sync, case)
    assert identical(worker["weights"], serial(case))
    staleness = Counter[int]()
    for server in servers:
        staleness.update(server["report"]["staleness"])
    assert staleness == {0: 4 * (len(servers) if getattr(sync, "lock", True) else 1)}


# -- synchronous, and SSP with s = 0: BSP


@pytest.mark.parametrize("sync", AS_BSP.values(), ids=list(AS_BSP))
def test_a_step_is_that_of_one_worker_with_all_samples_uneven_and_empty_batches_too(fabric, sync):
    case = Case(UNEVEN, optimizer=momentum)
    trained, servers = run(fabric, sync, case)
    assert all(distance(worker["weights"], serial(case)) < ROUNDING for worker in trained)
    pushes = sum(size > 0 for sizes in UNEVEN for size in sizes)
    assert all(server["report"]["staleness"] == {0: pushes} for server in servers)


@pytest.mark.parametrize("optimizer", [adam, replacing])
@pytest.mark.parametrize("sync", AS_BSP.values(), ids=list(AS_BSP))
def test_so_it_is_with_an_optimizer_that_steps_once_a_step(virtual_workers, sync, optimizer):
    case = Case(UNEVEN, optimizer=optimizer)
    trained, _ = run(virtual_workers, sync, case)
    assert all(distance(worker["weights"], serial(case)) < ROUNDING for worker in trained)


# -- what a push moves


@pytest.mark.parametrize(
    "sync",
    [Downpour(), SSP(0), SSP(2), Downpour(servers=2, lock=False)],
    ids=["asp", "ssp 0", "ssp 2", "asp, no lock"],
)
def test_pushes_take_the_share_of_the_rate_that_their_batch_has_of_the_samples(virtual_workers, sync):
    """So that all of a step's move the weights as far as the mean over its samples does, at any bound."""
    empty = frozenset({(0, 2), (1, 2), (2, 4)})
    job = Paced(sync, random_seconds(3, 6, 1.0), empty=empty)
    final = virtual_workers(3 + sync.servers, pace, job)[0]["final"][0]
    share = [[(i, c) not in empty and 1 / (3 - sum(at == c for _, at in empty)) for c in range(6)] for i in range(3)]
    assert torch.allclose(final, torch.tensor(share, dtype=torch.float64), atol=ROUNDING)


# -- several servers


@pytest.mark.parametrize("servers", [2, 3])
def test_each_server_trains_its_own_run_of_parameters(virtual_workers, servers):
    case = Case([[2, 2]] * 3, model=mlp)
    trained, told = run(virtual_workers, Downpour(servers=servers), case)
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


@pytest.mark.parametrize("of", [Downpour, SSP, ParameterServer])
@pytest.mark.parametrize("servers", [6, 9])
def test_more_servers_than_parameters_are_refused(servers, of):
    with pytest.raises(ConfigError, match=f"sync.servers={servers}.*there are 5.*<= 5"):
        of(servers=servers).cost(list(mlp().parameters()), World(2))


# -- deaths


def check_all_but_worker_1_from_step_3_on(results: list[Any], servers: int) -> None:
    zero, two, told = results[0], results[2], results[3:]
    assert [len(worker["ends"]) for worker in (zero, two)] == [6, 6]
    for worker in (zero, two):
        applied = worker["final"] > 0
        assert bool(applied[:, 0].all()) and bool(applied[:, 2].all())
        assert bool(applied[:, 1, :3].all()) and not bool(applied[:, 1, 3:].any())
    assert [server["report"]["lost"] for server in told] == [[1]] * servers


ASYNCHRONOUS = {
    "asp": Downpour(rate="full"),
    "ssp 0": SSP(0, "full"),
    "ssp 2": SSP(2, "full"),
    "ssp 1, two servers": SSP(1, "full", servers=2),
    "asp, no lock": Downpour(rate="full", servers=2, lock=False),
}


@pytest.mark.parametrize("how", ["before", "within"])
@pytest.mark.parametrize("name", list(ASYNCHRONOUS)[:4])
def test_asynchronous_workers_go_on_without_one_that_dies(virtual_workers, name, how):
    sync = ASYNCHRONOUS[name]
    assert sync.traits.survives
    job = Paced(sync, random_seconds(3, 6, 1.0), dies={1: (3, how)})
    check_all_but_worker_1_from_step_3_on(virtual_workers(3 + sync.servers, pace, job), sync.servers)


@pytest.mark.parametrize("how", ["before", "within"])
@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_asynchronous_workers_go_on_without_one_that_is_killed(workers, name, how):
    sync = ASYNCHRONOUS[name]
    job = Paced(sync, random_seconds(3, 6, 0.01), dies={1: (3, how)}, killed=True)
    check_all_but_worker_1_from_step_3_on(workers(3 + sync.servers, pace, job, lost=[1]), sync.servers)


@pytest.mark.parametrize(("sync", "worker"), [(ParameterServer(), 1), (Downpour(), 0), (SSP(2), 0)])
def test_a_synchronous_server_does_not_outlive_a_worker_nor_any_server_replica_0(virtual_workers, sync, worker):
    with pytest.raises(PeerLostError, match=f"worker {worker} is dead"):
        virtual_workers(3, pace, Paced(sync, [[1.0] * 4] * 2, dies={worker: (1, "before")}))


@pytest.mark.parametrize("f", [1, None])
def test_a_given_f_ends_a_run_once_deaths_leave_too_few_rows(virtual_workers, f):
    job = Paced(SSP(0, "full", aggregate=Median(f=f)), random_seconds(3, 6, 1.0), dies={1: (3, "before")})
    if f is None:
        assert virtual_workers(4, pace, job)[3]["report"]["lost"] == [1]
        return
    with pytest.raises(TooFewClientsError, match=r"aggregate.f=1: .* n > 2 f where n=2 rows are left"):
        virtual_workers(4, pace, job)


# -- what it keeps and costs


@pytest.mark.parametrize(
    "sync",
    [Downpour(), Downpour(2, 3), Downpour(4), Downpour(servers=2), Downpour(servers=2, lock=False), SSP(1)],
    ids=["asp", "push 2, fetch 3", "push 4", "two servers", "no lock", "ssp 1"],
)
def test_a_worker_and_its_servers_go_on_where_they_were_saved(fabric, sync):
    """After 3 of 7 steps, in the middle of what happens every few steps: as if there had been no interruption."""
    case = Case([[4]] * 7, model=mlp, optimizer=adam)
    trained, _ = run(fabric, sync, Case(case.sizes[:3], model=mlp, optimizer=adam))
    weights = trained[0]["trajectory"][-1]  # before the end's last push
    resumed, _ = run(fabric, sync, case, [to_bytes({"weights": weights, "sync": trained[0]["state"]})], start=3)
    straight, _ = run(fabric, sync, case)
    assert identical(resumed[0]["weights"], straight[0]["weights"])
    assert not identical(resumed[0]["weights"], weights)


COSTS = {
    "push 1, fetch 1": Downpour(1, 1),
    "push 2, fetch 3": Downpour(2, 3),
    "push 3, fetch 1": Downpour(3, 1),
    "push 2, fetch 3, two servers": Downpour(2, 3, servers=2),
    "no lock": Downpour(servers=3, lock=False),
    "ssp 0": SSP(0),
    "ssp 2, two servers": SSP(2, servers=2),
    "synchronous": ParameterServer(),
    "synchronous, three servers": ParameterServer(servers=3),
}


@pytest.mark.parametrize("sync", COSTS.values(), ids=list(COSTS))
def test_stated_cost_is_what_a_step_sends(fabric, sync):
    replicas, steps = 3, 6  # a multiple of every push and fetch
    cost = sync.cost(list(mlp().parameters()), World(replicas))
    trained, servers = run(fabric, sync, Case([[1] * replicas] * steps, model=mlp))
    size = 4 * sum(parameter.numel() for parameter in mlp().parameters())
    push, fetch = getattr(sync, "n_push", 1), getattr(sync, "n_fetch", 1)
    told = sync.servers if getattr(sync, "lock", True) else 1
    asks = 0 if sync.traits.synchronous else steps // fetch
    sent = steps // push * (size + HEADER * told) + asks * HEADER * told
    assert all(worker["ledger"] == {"send": sent} for worker in trained)
    assert cost.worker["send"] * steps == pytest.approx(sent)
    answers = sum(server["ledger"].get("send", 0) for server in servers)
    assert answers == replicas * size * (steps // fetch)
    assert cost.server["send"] * sync.servers * steps == pytest.approx(answers)


@pytest.mark.parametrize("sync", [*ALL.values(), SSP(0)], ids=[*ALL, "ssp 0"])
def test_stated_buffers_are_those_that_a_worker_holds(virtual_workers, sync):
    """A server has room for one more gradient where it gathers those of a clock."""
    stated = sync.cost(list(mlp().parameters()), World(1)).buffers
    gathers = sync.traits.synchronous or getattr(sync, "bound", 1) == 0
    assert virtual_workers(2, buffers_of, sync) == [stated, stated * (2 if gathers else 1)]


LEFT_OUT = {  # mode -> of which workers what was left out is back in a resumed run, where replica 0 saved or each did
    "asp": (Downpour(compress=TopK(0.1)), [True, False]),
    "ssp": (SSP(2, compress=TopK(0.1)), [True, False]),
    "synchronous": (ParameterServer(compress=TopK(0.1)), [True, True]),
}


@pytest.mark.parametrize(("sync", "back"), LEFT_OUT.values(), ids=list(LEFT_OUT))
def test_what_was_left_out_goes_on_with_the_replica_that_saved_it(virtual_workers, sync, back):
    trained, _ = run(virtual_workers, sync, Case([[2, 2]] * 3, model=mlp))
    kept = virtual_workers(3, left_out_of, sync, [to_bytes(worker["state"]) for worker in trained])
    assert [any(slot["memory"] for slot in slots.values()) for slots in kept[:2]] == back
    for worker, slots in zip(trained[:2], kept[:2], strict=True):
        for key, slot in slots.items():
            for name, e in slot["memory"].items():
                assert torch.equal(e, worker["state"]["channel"][key]["memory"][name])


def left_out_of(comm, sync, states):
    model = mlp()
    sync.prepare(dict(model.named_parameters()), momentum(model.parameters()), comm)
    if comm.rank == 2:
        sync.load_state_dict(from_bytes(states[0]))
        sync.serve()
        return {}
    sync.load_state_dict(from_bytes(states[comm.rank if sync.traits.synchronous else 0]))
    left_out = sync._worker._channel.state_dict()
    sync.finish()
    return left_out


def buffers_of(comm, sync):
    model = mlp()
    sync.prepare(dict(model.named_parameters()), momentum(model.parameters()), comm)
    return sum(buffer.numel() * buffer.element_size() for buffer in sync.buffers())


# -- refusals


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("sync=parameter_server sync.push=2", "sync.push: there is no such key; sync=asp has sync.push"),
        ("sync=parameter_server +sync.push=2", "sync.push: ParameterServer has no such .*; sync=asp has sync.push"),
        ("sync=parameter_server sync.fetch=3", "sync.fetch: .*; sync=asp has sync.fetch"),
        ("sync=parameter_server sync.staleness=0", "sync.staleness: .*; sync=ssp has sync.staleness"),
        ("sync=parameter_server sync.lock=false", "sync.lock: .*; sync=asp, .* have sync.lock"),
        ("sync=ssp sync.fetch=2", "sync.fetch: .*; sync=asp has sync.fetch"),
        ("sync=ssp +sync.push=2", "sync.push: SSP has no such parameter; sync=asp has sync.push"),
        ("sync=ssp sync.lock=false", "sync.lock: .*; sync=asp, .* have sync.lock"),
        ("sync=asp sync.staleness=3", "sync.staleness: there is no such key; sync=ssp has sync.staleness"),
        ("sync=asp sync.mode=synchronous", "sync.mode: there is no such key; it is tracking.mode=synchronous"),
        ("sync=ssp +sync.mode=asynchronous", "sync.mode: SSP has no such parameter; it is tracking.mode=..."),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_would(overrides, words):
    with pytest.raises(ConfigError, match=f"^{words}") as caught:
        engine.prepare(overrides.split()).plan()
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("sync", ALL.values(), ids=list(ALL))
def test_a_model_of_two_dtypes_is_refused(sync):
    with pytest.raises(ConfigError, match="sync=bsp takes several"):
        sync.cost(list(TwoDtypes().parameters()), World(2))


# -- whole runs


def mean_accuracy(root, *choices):
    """At the end, over three seeds: where an asynchronous run's last step ends is up to others' pushes, too."""
    settings = (*choices, "tracking=none", "hardware.device=cpu", "hardware.threads=1")
    runs = [engine.run([*settings, f"seed={seed}"], root=root, quiet=True) for seed in range(3)]
    return mean(cast(float, run.accuracy) for run in runs)


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
