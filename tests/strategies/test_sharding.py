"""Sharded BSP (ZeRO-1, ZeRO-2): the weights of BSP, with a K-th of the optimizer state, and of the gradients."""

from functools import partial
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    CLASSES,
    FEATURES,
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
    workers_of,
)
from torch import Tensor, nn

from paceline.conf.errors import ConfigError
from paceline.engine import prepare, run
from paceline.exchange.elementwise import check_elementwise, check_uncoupled
from paceline.strategies.core.cost import World, payload
from paceline.strategies.core.setting import Setting
from paceline.strategies.core.state import to_bytes
from paceline.strategies.core.sync import drop_gradients
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.optimizers.muon import Muon
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.bsp_naive import NaiveBSP
from paceline.strategies.sync.sharded_bsp import lay_out

pytestmark = pytest.mark.dist
TINY = 100 / 2**20  # MiB: buckets of 100 bytes
SHARDS: list[Any] = ["optimizer", "gradients"]
UNEVEN = {2: [[4, 4], [3, 2], [0, 1], [1, 0], [4, 3]], 3: [[4, 4, 4], [3, 3, 2], [1, 0, 1], [0, 1, 0], [2, 2, 1]]}
LONG = {replicas: sizes * 10 for replicas, sizes in UNEVEN.items()}  # 50 steps
of_shards = pytest.mark.parametrize("shard", SHARDS)


def tiny(shard: str, **more: Any) -> BSP:
    """Every tensor is in a bucket of its own, and most are cut."""
    return BSP(bucket_mb=TINY, first_bucket_mb=TINY / 2, shard=shard, **more)  # pyright: ignore[reportArgumentType]


def agree_after_every_step(results) -> bool:
    return all(
        identical(a, b)
        for result in results
        for a, b in zip(result["trajectory"], results[0]["trajectory"], strict=True)
    )


# -- the weights are those of BSP


@pytest.mark.parametrize("optimizer", [momentum, adam])
@pytest.mark.parametrize("replicas", [2, 3])
@of_shards
def test_fifty_steps_equal_one_worker_with_all_samples_and_replicas_agree(fabric, replicas, shard, optimizer):
    """Uneven and empty batches among them; each bucket of some is uneven over three replicas."""
    case = Case(LONG[replicas], optimizer=optimizer)
    results = fabric(replicas, train, Plan(DataParallel(), tiny(shard), case, seeds=[0, 1, 2]))
    assert agree_after_every_step(results)
    assert distance(results[0]["weights"], serial(case)) < 10 * ROUNDING


@pytest.mark.parametrize("optimizer", [momentum, adam])
@of_shards
def test_fifty_steps_equal_bsp_in_single_precision(fabric, shard, optimizer):
    case = Case(LONG[2], model=mlp, optimizer=optimizer)
    whole = fabric(2, train, Plan(DataParallel(), BSP(), case))
    sharded = fabric(2, train, Plan(DataParallel(), BSP(shard=shard), case))
    assert distance(sharded[0]["weights"], whole[0]["weights"]) < 50 * torch.finfo(torch.float32).eps


@of_shards
def test_each_stage_of_a_pipeline_shards_among_its_holders(fabric, shard):
    case = Case([[4, 4], [3, 2], [1, 0], [4, 4]], optimizer=adam)
    plan = Plan(Pipeline(stages=2, micro_batches=2), tiny(shard), case)
    results = fabric(workers_of(plan), train, plan)
    assert distance({**results[0]["weights"], **results[1]["weights"]}, serial(case)) < ROUNDING
    for part in range(2):
        assert agree_after_every_step([results[part], results[2 + part]])


@of_shards
def test_one_replica_is_serial_training_bit_for_bit(virtual_workers, shard):
    case = Case([[4], [3]], model=mlp, optimizer=adam)
    [result] = virtual_workers(1, train, Plan(DataParallel(), BSP(shard=shard), case))
    assert identical(result["weights"], serial(case))
    assert result["ledger"] == {}


# -- models and optimizers of all kinds


class Odd(nn.Module):
    """A scalar parameter, one of a single entry, an empty one, a frozen one, and a bucket with fewer entries than
    replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 5)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.shift = nn.Parameter(torch.tensor([0.25]))
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.last = nn.Linear(5, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh() * self.scale + self.shift + self.nothing.sum())


def odd64() -> nn.Module:
    return Odd().double()


@of_shards
def test_parameters_of_odd_shapes_train_and_save_as_serially(virtual_workers, shard):
    case = Case(UNEVEN[3], model=odd64, optimizer=adam)
    results = virtual_workers(3, train, Plan(DataParallel(), tiny(shard), case))
    assert agree_after_every_step(results)
    trained, expected = ({n: w for n, w in ws.items() if w.numel()} for ws in (results[0]["weights"], serial(case)))
    assert distance(trained, expected) < ROUNDING
    model = case.start()
    saved = results[0]["state"]["optimizer"]["state"]
    for i, parameter in enumerate(model.parameters()):
        assert parameter.numel() == 0 or saved[i]["exp_avg"].shape == parameter.shape


@of_shards
def test_parameters_of_several_dtypes_train_as_serially(virtual_workers, shard):
    case = Case([[4, 4]] * 3, model=TwoDtypes, optimizer=adam)
    results = virtual_workers(2, train, Plan(DataParallel(), tiny(shard), case))
    assert agree_after_every_step(results)
    trained, expected = results[0]["weights"], serial(case)
    assert {name: w.dtype for name, w in trained.items()} == {name: w.dtype for name, w in expected.items()}
    assert distance(trained, expected) < 24 * torch.finfo(torch.float32).eps


def two_groups(parameters) -> torch.optim.Optimizer:
    """Biases without weight decay, at another rate."""
    params = list(parameters)
    matrices = {"params": [p for p in params if p.dim() > 1]}
    vectors = {"params": [p for p in params if p.dim() < 2], "lr": 0.03, "weight_decay": 0.0}
    return torch.optim.AdamW([matrices, vectors], lr=0.01, weight_decay=0.1)


def adagrad(parameters) -> torch.optim.Optimizer:
    """Its state is there before the first step, and is not zero."""
    return torch.optim.Adagrad(parameters, lr=0.05, initial_accumulator_value=0.1)


@pytest.mark.parametrize("optimizer", [two_groups, adagrad])
@of_shards
def test_parameter_groups_and_state_from_the_start_are_cut_to_pieces(virtual_workers, shard, optimizer):
    case = Case(UNEVEN[3], optimizer=optimizer)
    results = virtual_workers(3, train, Plan(DataParallel(), tiny(shard), case))
    assert distance(results[0]["weights"], serial(case)) < ROUNDING
    fresh = optimizer(case.start().parameters()).state_dict()
    assert [g["params"] for g in results[0]["state"]["optimizer"]["param_groups"]] == [
        g["params"] for g in fresh["param_groups"]
    ]


BRANCHES = [[True, False], [False, True], [False, False], [True, True]]


@pytest.mark.parametrize("find_unused", [False, True])
@of_shards
def test_an_unused_branch_is_left_alone_only_where_it_is_found(virtual_workers, shard, find_unused):
    case = Case([[4, 4]] * 4, model=branching64, branches=BRANCHES, optimizer=adam)
    results = virtual_workers(2, train, Plan(DataParallel(), tiny(shard, find_unused=find_unused), case))
    assert agree_after_every_step(results)
    assert distance(results[0]["weights"], serial(case, zeros_for_none=not find_unused)) < ROUNDING
    assert distance(results[0]["weights"], serial(case, zeros_for_none=find_unused)) > 1e-4


# -- what is refused


class LARS(torch.optim.Optimizer):
    """A step as long as the tensor it belongs to."""

    def __init__(self, params, lr=0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * p.norm() / p.grad.norm() * p.grad)


def two_dimensional() -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(4, 3))]


class Unit(torch.optim.Optimizer):
    """Each step has the length lr, over all parameters together."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None) -> Any:
        params = [each for group in self.param_groups for each in group["params"]]
        length = torch.stack([each.grad.norm() for each in params]).norm()
        for each in params:
            each -= 0.1 * each.grad / length


class Renewing(torch.optim.SGD):
    """Puts new memory under its parameters."""

    @torch.no_grad()
    def step(self, closure=None):
        for each in self.param_groups[0]["params"]:
            each.data = each.data - 0.1 * each.grad


def test_an_optimizer_that_renews_the_memory_of_its_parameters_is_refused():
    with pytest.raises(ConfigError, match=r"sync\.shard=optimizer: .* Renewing puts new memory under a parameter"):
        check_elementwise(Renewing(two_dimensional()), "sync.shard=optimizer", "sync.shard=none")


class Around(torch.optim.Optimizer):
    """Steps with another optimizer, as Lookahead does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, inner.defaults)

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def scheduled(rate: float) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adafactor(two_dimensional(), lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate + step)
    return optimizer


def with_replaced_step() -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(two_dimensional())
    optimizer.step = lambda closure=None: None
    return optimizer


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (partial(scheduled, 1.0), "Adafactor is not element-wise"),  # the schedule's counter is no step of the trial
        (partial(scheduled, 0.0), "Adafactor is not element-wise"),  # a warm-up from 0
        (lambda: torch.optim.Adafactor(two_dimensional(), lr=1e-30), "Adafactor is not element-wise"),
        (lambda: Around(torch.optim.SGD(two_dimensional())), "Around steps with the parameters of the SGD in it"),
        (with_replaced_step, "replaced step of SGD may look at whole ones"),
    ],
)
def test_a_trial_that_would_tell_nothing_accepts_nothing(make, said):
    with pytest.raises(ConfigError, match=f"sync.shard=optimizer: .*{said}"):
        check_elementwise(make(), "sync.shard=optimizer", "sync.shard=none")


def test_a_schedule_leaves_an_elementwise_optimizer_one():
    for rate in (0.0, 1.0):
        optimizer = torch.optim.SGD(two_dimensional(), lr=0.1, momentum=0.9)
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step, rate=rate: rate + step)
        check_elementwise(optimizer, "sync.shard=optimizer", "sync.shard=none")
        assert not optimizer.state


@pytest.mark.parametrize("when", ["pre", "post"])
def test_hooks_of_a_step_are_refused_and_not_called(when):
    def changes(*_: Any) -> None:
        called.append(when)

    called: list[str] = []
    optimizer = torch.optim.SGD(two_dimensional())
    getattr(optimizer, f"register_step_{when}_hook")(changes)
    with pytest.raises(ConfigError, match=r"sync.shard=optimizer: .*hooks or a replaced step of SGD"):
        check_elementwise(optimizer, "sync.shard=optimizer", "sync.shard=none")
    assert not called


@pytest.mark.parametrize("kind", [LARS, Unit, torch.optim.Adafactor, torch.optim.Muon])
def test_an_optimizer_that_looks_at_whole_tensors_is_refused(kind):
    with pytest.raises(ConfigError, match=f"sync.shard=optimizer.*{kind.__name__} is not element-wise"):
        check_elementwise(kind(two_dimensional()), "sync.shard=optimizer", "sync.shard=none")


@pytest.mark.parametrize(
    "make",
    [
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
        partial(torch.optim.SGD, lr=0.1, fused=True),
        partial(torch.optim.SGD, lr=1e-30),
        partial(torch.optim.Adam, amsgrad=True),
        partial(torch.optim.AdamW, fused=True),
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        torch.optim.Adamax,
        torch.optim.ASGD,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
    ],
    ids=str,
)
def test_an_element_wise_optimizer_passes_and_is_left_as_it_was(make):
    params = two_dimensional()
    optimizer = make(params)
    before, weights = to_bytes(optimizer.state_dict()), params[0].detach().clone()
    check_elementwise(optimizer, "sync.shard=optimizer", "sync.shard=none")
    assert to_bytes(optimizer.state_dict()) == before
    assert torch.equal(params[0], weights) and params[0].grad is None


APART = {
    "strategy=pipeline": "strategy.stages=2",
    "strategy=torch_pipelining": "strategy.stages=2",
    "strategy=deepspeed_pipeline": "strategy.stages=2",
    "strategy=hybrid strategy.tensor=1": "strategy.stages=2",
    "strategy=torch_zero_optimizer": "strategy.zero_optimizer=true",
    "sync=parameter_server sync.servers=2": "sync.servers=2",
    "sync=asp sync.servers=2": "sync.servers=2",
    "sync=asp sync.servers=2 sync.lock=false": None,  # each server has all the weights
    "sync=ssp sync.servers=2": "sync.servers=2",
    "sync=parameter_server": None,
}


@pytest.mark.budget(1)
@pytest.mark.parametrize("words", APART)
def test_an_optimizer_that_couples_parameters_is_refused_where_workers_step_on_some(words):
    kind = f"optimizer={{_target_:{__name__}.Unit}}"
    experiment = prepare([*words.split(), kind, "hardware.workers=2"], allow_modules=[__name__])
    if (key := APART[words]) is None:
        experiment.plan()
        return
    with pytest.raises(ConfigError, match=rf"{key}: .*Unit couples them.*Choose (strategy|sync)[.a-z_]*=") as caught:
        experiment.plan()
    assert caught.value.exit_code == 2


class ByPlace(torch.optim.Optimizer):
    """Has a rate for each place in the list of its parameters."""

    def __init__(self, params, rates):
        super().__init__(params, {"lr": 0.1})
        self.rates = rates

    @torch.no_grad()
    def step(self, closure=None) -> Any:
        for each, rate in zip(self.param_groups[0]["params"], self.rates, strict=False):
            each.data = each - rate * each.grad


class Limited(torch.optim.SGD):
    """Limits the norm of all gradients, as few of a trial's would need."""

    def step(self, closure=None) -> Any:
        nn.utils.clip_grad_norm_([each for group in self.param_groups for each in group["params"]], 100.0)
        return super().step(closure)


class Counting(torch.optim.SGD):
    """Counts the steps of each place, and falls with them."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.counts = [0] * 2

    @torch.no_grad()
    def step(self, closure=None) -> Any:
        for k, each in enumerate(self.param_groups[0]["params"]):
            self.counts[k] += 1
            each -= each.grad / self.counts[k]


class Noisy(torch.optim.SGD):
    """Adds noise of its own to each step."""

    @torch.no_grad()
    def step(self, closure=None) -> Any:
        for each in self.param_groups[0]["params"]:
            each.add_(each.grad + torch.randn(each.shape), alpha=-0.1)


class Fading(torch.optim.SGD):
    """Has its rate fall by a schedule in it and by a tensor that counts; may limit the norm of all gradients."""

    def __init__(self, params, limit=float("inf")):
        super().__init__(params, lr=0.1)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self, 0.5)
        self.limit, self.count = limit, torch.ones(())

    def step(self, closure=None) -> Any:
        params = [each for group in self.param_groups for each in group["params"]]
        nn.utils.clip_grad_norm_(params, self.limit / float(self.count))
        super().step(closure)
        self.count += 1
        self.schedule.step()


class LimitedAround(Around):
    """Limits the norm of all gradients before another optimizer's step."""

    def __init__(self, params):
        super().__init__(torch.optim.SGD(params))

    def step(self, closure=None) -> Any:
        nn.utils.clip_grad_norm_([each for group in self.param_groups for each in group["params"]], 1.0)
        return super().step(closure)


class OwnNoise(Noisy):
    """Draws by a generator of its own."""

    def __init__(self, params):
        super().__init__(params)
        self.generator = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def step(self, closure=None):
        for each in self.param_groups[0]["params"]:
            each.add_(torch.randn(each.shape, generator=self.generator))


def test_a_trial_moves_nothing_that_an_optimizer_holds():
    optimizer = Fading(two_dimensional())
    check_elementwise(optimizer, "sync.shard=optimizer", "sync.shard=none")
    check_uncoupled(optimizer, "sync.servers=2", "sync.servers=1")
    assert float(optimizer.count) == 1 and optimizer.schedule.last_epoch == 0
    assert optimizer.param_groups[0]["lr"] == 0.1 and not optimizer.state


def test_a_trial_has_a_place_for_each_parameter():
    optimizer = ByPlace([each for _ in range(4) for each in two_dimensional()], [1.0, 1.0, 1.0, 0.5])
    with pytest.raises(ConfigError, match="ByPlace couples them"):
        check_uncoupled(optimizer, "sync.servers=2", "sync.servers=1")


COUPLING = [partial(ByPlace, rates=[1.0, 0.5]), Limited, Unit, partial(Fading, limit=1.0), LimitedAround]


@pytest.mark.parametrize("make", COUPLING, ids=str)
def test_a_trial_on_two_parameters_finds_one_that_couples_them(make):
    with pytest.raises(ConfigError, match=r"sync\.servers=2: .* couples them: .*Choose sync\.servers=1"):
        check_uncoupled(make(two_dimensional()), "sync.servers=2", "sync.servers=1")


ONE_BY_ONE = [partial(ByPlace, rates=[1.0, 1.0]), Counting, Noisy, OwnNoise, LARS, Renewing, Muon, Fading]


@pytest.mark.parametrize("make", ONE_BY_ONE, ids=str)
def test_a_trial_on_two_parameters_passes_one_that_takes_them_one_by_one(make):
    optimizer, drawn = make(two_dimensional()), torch.get_rng_state()
    before = to_bytes(optimizer.state_dict())
    check_uncoupled(optimizer, "sync.servers=2", "sync.servers=1")
    assert to_bytes(optimizer.state_dict()) == before
    assert torch.equal(torch.get_rng_state(), drawn) and getattr(optimizer, "counts", [0, 0]) == [0, 0]


class Knowing(torch.optim.SGD):
    """Knows its matrices: `by` says how."""

    def __init__(self, params, by):
        matrices = [each for each in params if each.dim() > 1]
        ids = {id(each) for each in matrices}
        kept = {
            "id": ids,
            "parameter": dict.fromkeys(matrices, 0.5),
            "pair": {"rates": [(each, 0.5) for each in matrices]},
            "function": lambda each: id(each) in ids,
            "size": [24] * 4,
        }
        super().__init__(params, lr=0.1)
        self.known = kept[by]


class Falling(ByPlace):
    """Has a lower rate for each parameter after the first."""

    def __init__(self, params):
        super().__init__(params, [1.0 / (k + 1) for k in range(len(params))])

    @torch.no_grad()
    def step(self, closure=None) -> Any:
        for each, rate in zip(self.param_groups[0]["params"], self.rates, strict=False):
            each -= rate * each.grad


class Layered(torch.optim.SGD):
    """Has a group for each parameter, whose rate goes by its place from the last."""

    def __init__(self, params):
        groups = [{"params": [each], "lr": 0.1 * 0.9**k} for k, each in enumerate(reversed(list(params)))]
        super().__init__(groups, lr=0.1)


class Marked(nn.Sequential):
    """Says a factor of the rate at each parameter."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))
        for k, each in enumerate(self.parameters()):
            vars(each)["factor"] = 0.5**k


class ByMark(torch.optim.SGD):
    """Looks at the factor, if `looks`."""

    def __init__(self, params, looks):
        super().__init__(params, lr=0.1)
        self.looks = looks

    @torch.no_grad()
    def step(self, closure=None) -> Any:
        for each in self.param_groups[0]["params"]:
            each.add_(each.grad, alpha=-0.1 * getattr(each, "factor", 1.0) if self.looks else -0.1)


class Keeping(torch.optim.SGD):
    """Saves a value under a key of its own."""

    def __init__(self, params, value):
        super().__init__(params, lr=0.1)
        self.value = value

    def state_dict(self) -> Any:
        return {**super().state_dict(), "value": self.value}


OF_PIECES = ["sync.shard=optimizer", "strategy=torch_fsdp", "strategy=zero"]
BY_ID = "Knowing knows its own by 'known'"


@pytest.mark.budget(1)
@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        ("sync.shard=optimizer", "Knowing,by:id", BY_ID),
        ("sync.shard=gradients", "Knowing,by:parameter", BY_ID),
        ("strategy=torch_fsdp", "Knowing,by:pair", BY_ID),
        ("sync.shard=optimizer", "Knowing,by:function", BY_ID),
        ("strategy=zero", "Knowing,by:id", BY_ID),
        ("strategy=tensor model.hidden=[8]", "Knowing,by:id", None),  # made with the pieces, it knows those
        ("strategy=pipeline", "Knowing,by:id", None),
        ("strategy=pipeline", "Layered", r"lr of hidden1.bias is 0\.1, where it is 0\.06\d* with all"),
        ("strategy=tensor model.hidden=[8]", "Layered", None),
        ("sync.shard=optimizer", "Knowing,by:size", None),
        ("sync.shard=optimizer", "Falling", "Falling couples them"),
        ("strategy=zero", "Falling", "Falling couples them"),
        *[(words, "ByMark,looks:true", "ByMark looks at attributes of parameters") for words in OF_PIECES],
        ("sync.shard=optimizer", "ByMark,looks:false", None),
        *[
            (words, "Keeping,value:[]", "Keeping saves 'value'")
            for words in (*OF_PIECES, "strategy=torch_zero_optimizer")
        ],
        ("strategy=zero", "Keeping,value:0", "Keeping saves 'value' too"),  # DeepSpeed loads no state of the optimizer
        ("sync.shard=optimizer", "Keeping,value:0", None),
        ("strategy=pipeline", "Keeping,value:[]", None),
        ("strategy=torch_fsdp", "Falling", None),  # a worker has a piece of each, in the same places
    ],
)
def test_an_optimizer_that_goes_by_ids_marks_or_places_is_refused_where_they_change(words, kind, said):
    its = f"optimizer={{_target_:{__name__}.{kind}}}"
    model = [f"model={{_target_:{__name__}.Marked}}"] if kind.startswith("ByMark") else []
    experiment = prepare([*words.split(), *model, its, "hardware.workers=2"], allow_modules=[__name__])
    if said is None:
        experiment.plan()
        return
    with pytest.raises(ConfigError, match=said) as caught:
        experiment.plan()
    assert caught.value.exit_code == 2


@of_shards
def test_it_is_refused_as_bad_configuration_before_anything_starts(shard):
    optimizer = ["optimizer._target_=torch.optim.Adafactor", "~optimizer.momentum", "~optimizer.nesterov"]
    with pytest.raises(ConfigError, match=f"sync.shard={shard}.*Adafactor.*sync.shard=none") as caught:
        prepare([f"sync.shard={shard}", *optimizer]).plan()
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("strategy", ["single", "torch_ddp"])
def test_a_strategy_that_owns_its_update_does_not_leave_it_out_silently(strategy):
    with pytest.raises(ConfigError, match=f"sync.shard=optimizer: strategy={strategy} owns.*data_parallel") as caught:
        prepare([f"strategy={strategy}", "sync.shard=optimizer", "hardware.workers=1"]).plan()
    assert caught.value.exit_code == 2


def test_a_shard_of_no_kind_is_refused():
    with pytest.raises(ConfigError, match=r"sync.shard='weights': must be 'none', 'optimizer' or 'gradients'"):
        prepare(["sync.shard=weights"]).plan()


def train_embedding(comm, make_sync, sparse):
    torch.manual_seed(0)
    table = nn.Embedding(10, 3, sparse=sparse)
    sync = make_sync()
    sync.prepare(dict(table.named_parameters()), torch.optim.SGD(table.parameters(), lr=0.1, momentum=0.9), comm)
    for step in range(3):
        sync.begin(replica_batch(Case([[1, 2], [2, 1], [1, 1]]), step, comm.rank))
        loss = table(torch.tensor([1, 2 + comm.rank, 1, step])).square().sum()
        sync.before_backward([loss], True)
        loss.backward()
        sync.update()
        drop_gradients(sync.parameters.values())
    return sync.consensus()["weight"]


@pytest.mark.parametrize(
    "make_sync", [NaiveBSP, *(partial(BSP, shard=shard) for shard in ("none", *SHARDS))], ids=["naive", "none", *SHARDS]
)
def test_sparse_gradients_train_as_dense_ones(virtual_workers, make_sync):
    sparse, dense = (virtual_workers(2, train_embedding, make_sync, each) for each in (True, False))
    assert all(identical({"w": one}, {"w": other}) for one, other in zip(sparse, dense, strict=True))


# -- cost


@pytest.mark.parametrize("find_unused", [False, True])
@pytest.mark.parametrize("replicas", [2, 3])
@of_shards
def test_stated_cost_is_what_a_step_sends(fabric, replicas, shard, find_unused):
    sync = tiny(shard, find_unused=find_unused)
    stated = sync.cost(list(mlp().parameters()), World(replicas)).worker
    case = Case([[2] * replicas] * 3, model=mlp)  # three: a third of a bitmap is no whole number of bytes
    for result in fabric(replicas, train, Plan(DataParallel(), sync, case)):
        assert result["ledger"] == {primitive: pytest.approx(3 * sent) for primitive, sent in stated.items()}


lengths = st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any)


@given(lengths, st.integers(2, 9), st.integers(1, 300))
def test_the_wire_has_a_reduce_scatter_and_an_all_gather_of_all_weights_and_their_padding(lengths, replicas, capacity):
    parameters = [torch.empty(length, device="meta") for length in lengths]
    layout = lay_out(parameters, replicas, capacity, capacity, frees=False)
    assert sum(extent.entries for extent in layout.extents) == sum(lengths)
    padded = replicas * layout.shard
    assert 4 * sum(lengths) <= padded < 4 * (sum(lengths) + replicas * len(layout.extents))
    each = (replicas - 1) * padded // replicas
    assert layout.traffic() == {"reduce_scatter": each, "all_gather": each}


def launched_in_backward(comm, shard):
    case = Case([[4, 4]])
    model = case.start()
    sync, strategy = tiny(shard), DataParallel()
    strategy.prepare(model, nn.functional.cross_entropy, comm, sync.before_backward)
    sync.prepare(dict(model.named_parameters()), adam(model.parameters()), comm)
    batch = replica_batch(case, 0, comm.rank)
    sync.begin(batch)
    before = comm.ledger.messages["reduce_scatter"]
    strategy.forward_backward(batch)
    during = comm.ledger.messages["reduce_scatter"] - before
    sync.update()
    return {"during": during, "all": comm.ledger.messages["reduce_scatter"] - before}


@of_shards
def test_buckets_go_out_during_backward(virtual_workers, shard):
    assert virtual_workers(2, launched_in_backward, shard) == [{"during": 5, "all": 5}] * 2


# -- memory


def memory_held(comm, shard, passes):
    """What a worker holds after a step with so many backward passes."""
    model = nn.Sequential(*[nn.Linear(40, 40) for _ in range(8)])
    sync = BSP(bucket_mb=7000 / 2**20, first_bucket_mb=7000 / 2**20, shard=shard)
    optimizer = torch.optim.Adam(model.parameters())
    sync.prepare(dict(model.named_parameters()), optimizer, comm)
    sync.begin(replica_batch(Case([[4] * comm.size]), 0, comm.rank))
    left = []
    for i in range(passes):
        loss = model(torch.randn(4, 40)).sum()
        sync.before_backward([loss], i == passes - 1)
        loss.backward()
        left.append(sum(p.grad is not None for p in model.parameters()))
    sync.update()
    state = [v for kept in optimizer.state.values() for v in kept.values()]
    storages = {p.untyped_storage()._cdata: p.untyped_storage().nbytes() for p in model.parameters()}
    return {
        "parameters": sum(storages.values()),
        "optimizer": sum(v.untyped_storage().nbytes() for v in state),
        "buffers": payload(sync.buffers()),
        "left": left,
        **sync.measured({}),
    }


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("replicas", [2, 3])
@of_shards
def test_stated_memory_is_what_is_held(virtual_workers, shard, replicas, passes):
    parameters = [p for _ in range(8) for p in nn.Linear(40, 40).parameters()]
    size = payload(parameters)
    sync = BSP(bucket_mb=7000 / 2**20, first_bucket_mb=7000 / 2**20, shard=shard)
    sync.configure(Setting(backward_passes=passes))
    whole = {"parameters": size, "gradients": size, "optimizer": 2 * size + 4 * 16, "activations": 5, "buffers": 7}
    stated = dict(sync.memory(whole, parameters, replicas))
    stated["buffers"] = sync.cost(parameters, World(replicas)).buffers
    assert stated["activations"] == 5
    results = virtual_workers(replicas, memory_held, shard, passes)
    for result in results:
        for kind in ("parameters", "gradients", "optimizer", "buffers"):
            assert result[kind] == pytest.approx(stated[kind], rel=0.05), kind
        # gradients leave for their buckets in the last pass, and gather in full before it
        assert result["left"] == [16] * (passes - 1) + [0]
    assert stated["optimizer"] == pytest.approx(2 * size / replicas, rel=0.05)
    if shard == "gradients" and passes == 1:
        largest = 4 * 40 * 40
        assert stated["gradients"] == pytest.approx(size / replicas + largest, rel=0.05)
        assert stated["buffers"] == pytest.approx(3 * 4 * 41 * 40, rel=0.05)


SETTINGS = [
    "model=mlp",
    "model.hidden=[64,64]",
    "data=digits",
    "data.limit=96",
    "batch_size=8",
    "epochs=10",
    "tracking=none",
    "hardware.device=cpu",
    "hardware.threads=1",
    "hardware.timeout=30",
    "sync.bucket_mb=0.02",
    "sync.first_bucket_mb=0.01",
    "optimizer=adam",
]


def finish(*overrides: str, **how: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    result = run(list(overrides) if "resume" in how else [*SETTINGS, *overrides], quiet=True, **how)
    assert result is not None and result.summary["status"] == "completed"
    return safetensors.torch.load_file(result.path / "model.safetensors"), result.summary


@pytest.fixture
def own_directory(fork_server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "how",
    [["hardware.workers=3"], pytest.param(["strategy=pipeline", "hardware.workers=4"], marks=pytest.mark.slow)],
    ids=["replicas", "pipeline"],
)
@of_shards
@pytest.mark.slow
def test_a_run_measures_the_bytes_and_the_memory_that_its_plan_states(own_directory, shard, how):
    _, summary = finish("checkpoint.every=0", "steps=4", f"sync.shard={shard}", *how)
    _, whole = finish("checkpoint.every=0", "steps=4", *how)
    stated = summary["predicted"]
    assert summary["wire"]["bytes_per_step"] == stated["bytes_per_step"]
    assert {"reduce_scatter", "all_gather"} <= summary["wire"]["by_primitive"].keys()
    for kind in ("parameters", "gradients", "optimizer", "buffers"):
        assert summary["memory"][kind] == pytest.approx(stated["memory"][kind], rel=0.05), kind
    replicas = summary["replicas"]
    assert summary["memory"]["optimizer"] == pytest.approx(whole["memory"]["optimizer"] / replicas, rel=0.05)


# -- checkpoints


@pytest.mark.slow
@of_shards
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(own_directory, shard):
    chosen = [f"sync.shard={shard}", "hardware.workers=2", "checkpoint.every_steps=4"]
    straight, _ = finish(*chosen, "steps=8", name="straight")
    again, _ = finish(*chosen, "steps=4", name="again")
    assert not identical(straight, again)
    resumed, _ = finish("steps=8", resume="again")
    assert identical(straight, resumed)


@pytest.mark.parametrize(
    ("before", "after"), [("none", "gradients"), ("gradients", "none"), ("optimizer", "gradients")], ids=str
)
@pytest.mark.parametrize("replicas", [2, 3])
def test_state_saved_by_two_replicas_goes_on_sharded_otherwise_and_by_more(virtual_workers, before, after, replicas):
    def plan(shard: str, sizes: list[list[int]], **more: Any) -> Plan:
        return Plan(DataParallel(), tiny(shard), Case(sizes, optimizer=adam), **more)

    # the same samples in each step, whoever takes them
    first, then = [[3, 3]] * 3, [[6 // replicas] * replicas] * 6
    half = virtual_workers(2, train, plan(before, first))[0]
    saved = [to_bytes({"weights": half["weights"], "sync": half["state"]})]
    results = virtual_workers(replicas, train, plan(after, then, state=saved, start=3))
    assert distance(results[0]["weights"], serial(Case(then, optimizer=adam))) < ROUNDING


@of_shards
def test_what_is_saved_is_the_unsharded_optimizers_own_state_and_layout(virtual_workers, shard):
    case = Case(UNEVEN[3], optimizer=adam)
    sharded = virtual_workers(3, train, Plan(DataParallel(), tiny(shard), case))
    whole = virtual_workers(3, train, Plan(DataParallel(), tiny("none"), case))[0]["state"]["optimizer"]
    saved = sharded[0]["state"]["optimizer"]
    elsewhere = [its for result in sharded[1:] for its in result["state"]["optimizer"]["state"].values()]
    assert elsewhere and {its[key] for its in elsewhere for key in ("exp_avg", "exp_avg_sq")} == {None}
    assert saved["param_groups"] == whole["param_groups"]
    assert saved["state"].keys() == whole["state"].keys()
    for i, kept in whole["state"].items():
        assert distance(saved["state"][i], kept) < ROUNDING
    model = mlp64()
    adam(model.parameters()).load_state_dict(saved)


def load_other(comm, shard):
    model = mlp64()
    sync = tiny(shard)
    sync.prepare(dict(model.named_parameters()), adam(model.parameters()), comm)
    try:
        sync.load_state_dict({"optimizer": adam(odd64().parameters()).state_dict()})
    except ValueError as error:
        return str(error)


@of_shards
def test_state_of_another_model_is_refused(virtual_workers, shard):
    assert virtual_workers(2, load_other, shard) == ["the saved optimizer state is of other parameters"] * 2


def test_weights_are_the_model_that_was_given(virtual_workers):
    """Parameters keep their identity, names and values when they become views of buckets."""
    [result, _] = virtual_workers(2, views_of_buckets)
    assert identical(result["before"], result["after"])


def views_of_buckets(comm):
    model = mlp64()
    before = weights_of(model)
    tiny("optimizer").prepare(dict(model.named_parameters()), adam(model.parameters()), comm)
    return {"before": before, "after": weights_of(model)} if comm.rank == 0 else {}
