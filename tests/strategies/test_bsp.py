"""BSP by all-reduce: K replicas are one worker with the batch of all, and every version of it is the same."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

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
    adam,
    branching64,
    distance,
    identical,
    mlp,
    mlp64,
    momentum,
    replica_batch,
    serial,
    train,
    weights_of,
)
from torch import nn

from paceline.batches import lone
from paceline.comm.ledger import all_reduce_bytes
from paceline.exchange.reducer import leaves
from paceline.strategies.core.batch import Batch
from paceline.strategies.core.cost import World
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.bsp_naive import NaiveBSP
from paceline.strategies.torch_ddp import TorchDDP

pytestmark = pytest.mark.dist
TINY = 100 / 2**20  # MiB: buckets of 100 bytes
VERSIONS = {
    "naive": (DataParallel, NaiveBSP),
    "bucketed": (DataParallel, BSP),
    "tiny buckets": (DataParallel, lambda: BSP(bucket_mb=TINY, first_bucket_mb=TINY / 2)),
    "one bucket": (DataParallel, lambda: BSP(first_bucket_mb=25.0)),
    "find unused": (DataParallel, lambda: BSP(bucket_mb=TINY, first_bucket_mb=TINY, find_unused=True)),
    "torch_ddp": (TorchDDP, BSP),
}
UNEVEN = {
    1: [[4], [3]],
    2: [[4, 4], [4, 4], [3, 2], [1, 0]],
    3: [[4, 4, 4], [3, 3, 2], [1, 1, 0]],
    4: [[2, 2, 2, 2], [1, 0, 0, 0]],
}
EVEN = [[4, 4]] * 3


def plan(version: str, case: Case) -> Plan:
    strategy, sync = VERSIONS[version]
    return Plan(strategy(), sync(), case, seeds=[0, 1, 2, 3])  # replicas start apart: replica 0's start counts


def agree(results) -> bool:
    return all(identical(result["weights"], results[0]["weights"]) for result in results)


# -- K workers with batch B are one with batch KB


def is_fast(version: str, replicas: int, optimizer: Callable[..., torch.optim.Optimizer]) -> bool:
    return (replicas, optimizer) == (2, momentum) or (version, replicas) == ("bucketed", 3)


@pytest.mark.parametrize(
    ("version", "replicas", "optimizer"),
    [
        pytest.param(*case, marks=[] if is_fast(*case) else pytest.mark.slow)
        for case in product(VERSIONS, [2, 3, 4], [momentum, adam])
    ],
)
def test_replicas_equal_one_worker_with_all_their_samples(workers, version, replicas, optimizer):
    case = Case(UNEVEN[replicas], optimizer=optimizer)
    results = workers(replicas, train, plan(version, case))
    assert agree(results)
    assert distance(results[0]["weights"], serial(case)) < ROUNDING


@pytest.mark.parametrize("version", VERSIONS)
def test_one_replica_is_serial_training_bit_for_bit(workers, version):
    case = Case(UNEVEN[1], model=mlp)
    [result] = workers(1, train, plan(version, case))
    assert identical(result["weights"], serial(case))
    assert result["ledger"] == {}


def test_the_weighting_by_samples_matters(workers):
    """Without it, uneven shares would give what this oracle gives: the test of the rule can fail."""
    case = Case([[3, 1]])
    [result, _] = workers(2, train, plan("bucketed", case))
    model = case.start()
    optimizer = case.optimizer(model.parameters())
    for x, y in zip(*(t.split([3, 1]) for t in case.step(0)), strict=True):
        (F.cross_entropy(model(x), y) / 2).backward()
    optimizer.step()
    assert distance(result["weights"], weights_of(model)) > 1e3 * ROUNDING


# -- one version is the other


@pytest.mark.parametrize("version", ["bucketed", "tiny buckets", "one bucket", "find unused", "torch_ddp"])
def test_two_replicas_give_the_bits_of_the_naive_version(workers, version):
    """With K = 2 a sum has one order, and shares of 1/2 scale without rounding."""
    case = Case(EVEN, model=mlp)
    naive = workers(2, train, plan("naive", case))
    assert identical(workers(2, train, plan(version, case))[1]["weights"], naive[1]["weights"])


@pytest.mark.parametrize("version", ["bucketed", "tiny buckets"])
def test_two_uneven_replicas_give_the_bits_of_the_naive_version(workers, version):
    """Both scale a gradient by its share before the sum."""
    case = Case(UNEVEN[2], model=mlp)
    naive = workers(2, train, plan("naive", case))
    assert identical(workers(2, train, plan(version, case))[0]["weights"], naive[0]["weights"])


@pytest.mark.parametrize("version", ["naive", "bucketed", "tiny buckets"])
def test_parameters_of_several_dtypes_train_as_serially(workers, version):
    case = Case(EVEN, model=TwoDtypes)
    results = workers(2, train, plan(version, case))
    assert agree(results)
    trained, expected = results[0]["weights"], serial(case)
    assert {name: w.dtype for name, w in trained.items()} == {name: w.dtype for name, w in expected.items()}
    # float32 gradients of a batch and of its halves differ by the rounding of sums over 8 samples
    assert distance(trained, expected) < 8 * len(EVEN) * torch.finfo(torch.float32).eps


# -- the order of launches, and overlap


BRANCHES = [[True, False], [False, True], [False, False], [True, True]]


def test_every_worker_launches_the_same_sequence_whatever_it_used(workers):
    case = Case([[4, 4]] * 4, model=branching64, branches=BRANCHES)
    results = workers(2, train, plan("find unused", case))
    assert results[0]["launched"] == results[1]["launched"]
    assert len(results[0]["launched"][0]) > 3  # several buckets


def test_buckets_go_out_last_layer_first_and_during_backward(workers):
    case = Case([[4, 4]])
    results = workers(2, train, plan("tiny buckets", case))
    # float64 entries: head bias 4, head weight 32, then 80, then bias 10, weight 60; 100 bytes hold only single tensors
    assert results[0]["launched"] == [[f"torch.float64 {n}" for n in (4, 32, 80, 10, 60)]]
    assert results[0]["launched in backward"] == [5]


def test_an_empty_share_launches_the_same_sequence(workers):
    results = workers(2, train, plan("tiny buckets", Case([[1, 0], [4, 4]])))
    assert results[0]["launched"] == results[1]["launched"]
    assert results[1]["launched in backward"][0] == 0  # it had no backward pass


# -- unused parameters


@pytest.mark.parametrize("version", ["naive", "bucketed", "tiny buckets", "find unused"])
def test_a_branch_unused_on_one_replica_neither_hangs_nor_goes_stale(workers, version):
    case = Case([[4, 4]] * 3, model=branching64, branches=[[True, False], [False, True], [True, True]])
    results = workers(2, train, plan(version, case), patience=30)
    assert agree(results)
    expected = serial(case, zeros_for_none=version != "find unused")
    assert distance(results[0]["weights"], expected) < ROUNDING


@pytest.mark.parametrize("optimizer", [momentum, adam])
@pytest.mark.parametrize("version", ["naive", "tiny buckets", "find unused"])
def test_a_branch_unused_on_all_replicas_is_left_alone_only_where_it_is_found(workers, version, optimizer):
    """find_unused: no weight decay, no momentum, as in serial training; otherwise its gradient counts as zero."""
    case = Case([[4, 4]] * 4, model=branching64, branches=BRANCHES, optimizer=optimizer)
    results = workers(2, train, plan(version, case))
    assert agree(results)
    assert distance(results[0]["weights"], serial(case, zeros_for_none=version != "find unused")) < ROUNDING
    assert distance(results[0]["weights"], serial(case, zeros_for_none=version == "find unused")) > 1e-4
    start = weights_of(case.start())
    assert torch.equal(results[0]["weights"]["never.weight"], start["never.weight"]) == (version == "find unused")


def test_torch_ddp_with_find_unused_trains_an_unused_branch_too(workers):
    case = Case([[4, 4]] * 2, model=branching64, branches=[[True, False], [True, True]])
    results = workers(2, train, Plan(TorchDDP(find_unused=True), BSP(), case))
    assert agree(results)
    assert distance(results[0]["weights"], serial(case)) < ROUNDING


def without_never() -> nn.Module:
    model = branching64()
    del model.never
    return model


@pytest.mark.parametrize(
    ("model", "branches"),
    [(branching64, [[True, True]]), (without_never, [[True, True], [False, False]])],
    ids=["from the start", "in the last step"],
)
def test_torch_ddp_names_find_unused_in_the_step_that_leaves_a_parameter_without_gradient(workers, model, branches):
    """torch itself speaks in the next step. After the last one replicas would differ in silence."""
    case = Case([[4, 4]] * len(branches), model=model, branches=branches)
    told = r"find_unused=false: a parameter had no gradient in this step.*Choose strategy\.find_unused=true"
    with pytest.raises(Exception, match=told):
        workers(2, train, Plan(TorchDDP(), BSP(), case))
    if model is without_never:
        assert agree(workers(2, train, Plan(TorchDDP(find_unused=True), BSP(), case)))
        assert agree(workers(2, train, Plan(TorchDDP(), BSP(), replace(case, branches=[[True, True]] * 2))))


def test_leaves_are_the_parameters_that_backward_reaches():
    model = branching64()
    x = torch.ones(2, 6, dtype=torch.float64)
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    used = {names[leaf] for leaf in leaves([model(x).sum()])}
    assert used == {"trunk.weight", "trunk.bias", "branch.weight", "branch.bias", "head.weight", "head.bias"}
    assert {names[leaf] for leaf in leaves([model(-x).sum()])} == used - {"branch.weight", "branch.bias"}
    assert leaves([x.sum()]) == set()


# -- accumulation: several backward passes, one exchange (no_sync)


def accumulate(comm, case, find_unused, pieces, branch_in_piece):
    model = case.start()
    optimizer = case.optimizer(model.parameters())
    sync = BSP(bucket_mb=TINY, first_bucket_mb=TINY, find_unused=find_unused)
    sync.prepare(dict(model.named_parameters()), optimizer, comm)
    early = []
    for step in range(len(case.sizes)):
        batch = replica_batch(case, step, comm.rank)
        if branch_in_piece is not None:  # only that backward pass goes through the branch
            for i, x in enumerate(lone(batch.inputs).tensor_split(pieces)):
                x[:, 0] = 1.0 if i == branch_in_piece else -1.0
        sync.begin(batch)
        before = comm.ledger.messages["all_reduce"]
        parts = list(zip(batch.inputs.tensor_split(pieces), lone(batch.targets).tensor_split(pieces), strict=True))
        for i, (x, y) in enumerate(parts):
            loss = F.cross_entropy(model(x), y) * (len(y) / batch.size)
            sync.before_backward([loss], last=i == pieces - 1)
            if i == pieces - 1:
                early.append(comm.ledger.messages["all_reduce"] - before)
            loss.backward()
        sync.update()
    return {"weights": weights_of(model), "early": early}


@pytest.mark.parametrize("find_unused", [False, True])
@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_several_backward_passes_and_one_exchange_equal_one_big_batch(workers, pieces, find_unused):
    case = Case([[6, 6], [6, 6], [5, 4]])
    results = workers(2, accumulate, case, find_unused, pieces, None)
    assert agree(results)
    assert distance(results[0]["weights"], serial(case)) < ROUNDING
    assert all(result["early"] == [0, 0, 0] for result in results)  # nothing travels before the last pass


@pytest.mark.parametrize("find_unused", [False, True])
def test_what_only_an_early_backward_pass_used_is_exchanged_too(workers, find_unused):
    sizes, pieces = [4, 4], 2
    case = Case([sizes], model=branching64)
    results = workers(2, accumulate, case, find_unused, pieces, 0)
    assert agree(results)

    model = case.start()
    optimizer = case.optimizer(model.parameters())
    for inputs, targets in zip(*(t.split(sizes) for t in case.step(0)), strict=True):
        for i, (x, y) in enumerate(zip(inputs.tensor_split(pieces), targets.tensor_split(pieces), strict=True)):
            x[:, 0] = 1.0 if i == 0 else -1.0
            (F.cross_entropy(model(x), y) * (len(y) / sum(sizes))).backward()
    if not find_unused:
        for name, parameter in model.named_parameters():
            if name.startswith("never."):
                parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert distance(results[0]["weights"], weights_of(model)) < ROUNDING


# -- cost


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("replicas", [2, 3])
def test_stated_cost_is_what_a_step_sends(workers, version, replicas):
    case = Case([[2] * replicas] * 4, model=mlp)
    strategy, sync = VERSIONS[version]
    stated = (strategy().own_sync() or sync()).cost(list(case.start().parameters()), World(replicas)).worker
    for result in workers(replicas, train, plan(version, case)):
        assert result["ledger"].keys() == stated.keys()
        messages = 4 * len(list(case.start().parameters())) + 4  # the ledger holds whole bytes: half of one a message
        assert result["ledger"]["all_reduce"] == pytest.approx(4 * stated["all_reduce"], abs=messages / 2)


def test_gradients_are_handed_on_one_by_one_where_others_wait_for_them() -> None:
    parameters = list(mlp().parameters())
    assert [BSP().transfers(parameters, World(replicas)).hooked for replicas in (1, 2)] == [0, len(parameters)]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 64))
def test_cost_is_that_of_a_ring_over_all_gradients(lengths, replicas):
    parameters = [torch.empty(length, device="meta") for length in lengths]
    ring = float(all_reduce_bytes(4 * sum(lengths), replicas))
    for sync in (NaiveBSP(), BSP()):
        assert sync.cost(parameters, World(replicas)).worker["all_reduce"] == pytest.approx(ring)
    with_bitmap = float(all_reduce_bytes(4 * sum(lengths) + 4 * len(lengths), replicas))
    assert BSP(find_unused=True).cost(parameters, World(replicas)).worker["all_reduce"] == pytest.approx(with_bitmap)


def buffers_of(comm, version):
    run = plan(version, Case([[1, 1]], model=mlp))
    model = run.case.start()
    sync = run.sync
    sync.prepare(dict(model.named_parameters()), run.case.optimizer(model.parameters()), comm)
    return [buffer.numel() * buffer.element_size() for buffer in sync.buffers()]


@pytest.mark.parametrize("version", ["naive", "bucketed", "tiny buckets"])
def test_stated_buffers_are_those_that_are_held(workers, version):
    stated = plan(version, Case([[1, 1]])).sync.cost(list(mlp().parameters()), World(2)).buffers
    assert all(sum(held) == stated for held in workers(2, buffers_of, version))


def test_a_batchs_share_is_its_part_of_all_samples():
    assert Batch(torch.empty(3, 1), torch.empty(3), total=12).share == 0.25
    assert Batch(torch.empty(0, 1), torch.empty(0), total=5).share == 0.0


def test_the_double_precision_model_is_the_same_model():
    """float64 copies of float32 starts: what the tolerances above rely on."""
    torch.manual_seed(0)
    single = mlp()
    torch.manual_seed(0)
    assert all(torch.equal(a.double(), b) for a, b in zip(single.parameters(), mlp64().parameters(), strict=True))
