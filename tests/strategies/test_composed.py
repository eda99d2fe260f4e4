"""Composed modes against explicit loops in plain torch: a local step, then one exchange after another."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from choices import SYNCS
from oracles import ROUNDING, Case, adam, identical, mlp, momentum, serial
from replicas import Life, Replica, flat, live, saved_after, stacked
from torch import Tensor

from paceline.conf.errors import ConfigError
from paceline.engine import prepare, run
from paceline.engine.config.compose import compose
from paceline.engine.config.experiment import shipped
from paceline.engine.config.overrides import overrides_of
from paceline.engine.config.swept import sweep_values
from paceline.engine.config.targets import build
from paceline.engine.config.typed import choices_in
from paceline.engine.features import injected
from paceline.exchange.aggregate import Median
from paceline.strategies import Sync
from paceline.strategies.core.cost import Memory, World
from paceline.strategies.core.local_steps import LocalSteps
from paceline.strategies.sync.composed import Composed
from paceline.strategies.sync.gossip import Gossip
from paceline.strategies.sync.local_sgd import LocalSGD
from paceline.strategies.sync.noloco import NoLoCo
from paceline.strategies.sync.sparta import Sparta

pytestmark = pytest.mark.dist
SHARE, RATE, MU = 0.3, 0.6, 0.5


def sparta(share: float = SHARE, period: int = 1) -> Sparta:
    return Sparta(share, period, seed=7)


def diloco(period: int) -> LocalSGD:
    return LocalSGD(period, outer_lr=RATE, outer_momentum=MU)


def test_the_page_lists_the_modes_that_can_be_parts() -> None:
    """The list has no names of modes that are composed themselves."""
    taken = {name for name, mode in SYNCS.items() if is_part(mode) and not isinstance(mode, Composed)}
    page = (Path(__file__).parents[2] / "docs" / "sync_modes.md").read_text()
    [names] = re.findall(r"\*\*Parts\.\*\*.*?one:(.*?)and composed modes\.", page, re.DOTALL)
    listed = set(re.findall(r"`(\w+)`", names))
    change = f"add {sorted(taken - listed)} and remove {sorted(listed - taken)}"
    assert listed == taken, f"docs/sync_modes.md, Parts: {change}"


def is_part(mode: Sync) -> bool:
    """Returns whether a composed mode takes it with its defaults."""
    if not isinstance(mode, LocalSteps):
        return False
    try:
        Composed({"part": mode})
    except ConfigError:
        return False
    return True


def inside(inner: LocalSteps, outer: LocalSteps) -> Composed:
    return Composed({"inner": inner, "outer": outer})


class Loop:
    """Replicas in plain torch."""

    def __init__(self, case: Case) -> None:
        self.case, count = case, len(case.sizes[0])
        self.replicas = [Replica(case, 0, rank) for rank in range(count)]
        self.slow = self.rows()[0]  # w of DiLoCo
        self.v = torch.zeros_like(self.slow)
        self.samples = torch.zeros(count, dtype=torch.float64)

    def rows(self) -> Tensor:
        return torch.stack([replica.vector for replica in self.replicas])

    def put(self, rows: Tensor) -> None:
        for replica, row in zip(self.replicas, rows, strict=True):
            replica.vector = row

    def step(self, t: int) -> None:
        for replica in self.replicas:
            replica.gradient(t)
            replica.step()
        self.samples += torch.tensor(self.case.sizes[t], dtype=torch.float64)

    def average_a_share(self, round: int) -> None:
        rows = self.rows()
        n = rows.shape[1]
        entries = np.random.default_rng((7, round)).choice(n, round_of(n), replace=False, shuffle=False)
        rows[:, entries] = rows[:, entries].mean(0)
        self.put(rows)

    def outer_step(self) -> None:
        self.slow, self.v = self.after_outer_step()
        self.put(self.slow.expand(len(self.replicas), -1))
        self.samples.zero_()

    def after_outer_step(self) -> tuple[Tensor, Tensor]:
        mean = (self.samples / self.samples.sum()) @ self.rows()
        d = self.slow - mean
        v = MU * self.v + d
        return self.slow - RATE * (d + MU * v), v


def round_of(n: int) -> int:
    return max(1, round(SHARE * n))


CASES = [(2, 1, 3, momentum), (3, 2, 4, adam), (4, 2, 2, momentum)]


@pytest.mark.parametrize(("n", "often", "seldom", "optimizer"), CASES)
def test_sparta_inside_diloco_is_a_step_then_the_mean_of_a_share_then_the_outer_step(
    fabric, n, often, seldom, optimizer
):
    case = Case([[3] * n, [2] * n, [1] * (n - 1) + [0], [3] * n, [2] * n], optimizer=optimizer)
    results = fabric(n, live, Life(inside(sparta(period=often), diloco(seldom)), case, looks=True))
    loop = Loop(case)
    for t in range(len(case.sizes)):
        loop.step(t)
        if (t + 1) % often == 0:
            loop.average_a_share((t + 1) // often - 1)
        if (t + 1) % seldom == 0:
            loop.outer_step()
        assert torch.allclose(stacked(results, t), loop.rows(), rtol=0, atol=ROUNDING)
        consensus = loop.after_outer_step()[0] if loop.samples.any() else loop.slow
        for result in results:
            assert torch.allclose(flat(result["seen"][t]), consensus, rtol=0, atol=ROUNDING)
    if loop.samples.any():
        loop.outer_step()
    for result in results:
        assert torch.allclose(flat(result["weights"]), loop.slow, rtol=0, atol=ROUNDING)
        assert identical(result["result"], results[0]["weights"])


def test_the_other_order_and_either_part_alone_train_something_else(virtual_workers):
    """Batches are uneven: SPARTA conserves the plain mean, with which both orders would be the same."""
    case = Case([[1, 2, 3]] * 3)
    modes = [inside(sparta(), diloco(2)), inside(diloco(2), sparta()), sparta(), diloco(2)]
    ends = [flat(virtual_workers(3, live, Life(mode, case))[0]["trajectory"][2]) for mode in modes]
    assert not any(torch.allclose(a, b, atol=1e-6) for i, a in enumerate(ends) for b in ends[:i])


PARTS = {
    "sparta": lambda: sparta(period=2),
    "local_sgd": lambda: LocalSGD(3),
    "diloco": lambda: diloco(3),
    "gossip": lambda: Gossip("one_peer_exponential", period=2),
    "noloco": lambda: NoLoCo(3),
}


@pytest.mark.parametrize("mode", PARTS)
def test_one_part_alone_is_that_mode_bit_for_bit(virtual_workers, mode):
    case = Case([[3, 2, 1], [2, 2, 0], [1, 3, 3], [3, 3, 3]])
    alone = virtual_workers(3, live, Life(PARTS[mode](), case))
    composed = virtual_workers(3, live, Life(Composed({"it": PARTS[mode]()}), case))
    for one, other in zip(alone, composed, strict=True):
        assert all(identical(a, b) for a, b in zip(one["trajectory"], other["trajectory"], strict=True))
        assert identical(one["weights"], other["weights"])
        assert all(one[key] == other[key] for key in ("ledger", "buffers", "report"))


@pytest.mark.parametrize("outer", ["local_sgd", "diloco", "gossip", "noloco"])
def test_all_of_the_weights_averaged_in_each_step_leave_local_sgd_inside_any_mode(virtual_workers, outer):
    """Equal batches let each mode start its exchange from equal weights, as inside local_sgd with period 1."""
    case = Case([[3, 3]] * 7, model=mlp)
    everything = virtual_workers(2, live, Life(inside(sparta(1.0), PARTS[outer]()), case))
    averaged = virtual_workers(2, live, Life(inside(LocalSGD(1), PARTS[outer]()), case))
    for t in range(7):
        assert torch.equal(stacked(everything, t), stacked(averaged, t))


def test_all_of_the_weights_averaged_before_their_mean_is_local_sgd_to_rounding(virtual_workers):
    case = Case([[3, 3]] * 6)
    both = virtual_workers(2, live, Life(inside(sparta(1.0, period=2), LocalSGD(2)), case))
    averaged = virtual_workers(2, live, Life(LocalSGD(2), case))
    for t in range(6):
        assert torch.allclose(stacked(both, t), stacked(averaged, t), rtol=0, atol=ROUNDING)


def test_one_replica_is_serial_training_bit_for_bit_and_sends_nothing(virtual_workers):
    case = Case([[4], [3], [1]], model=mlp)
    mode = inside(sparta(), LocalSGD(2))
    assert mode.traits.serial_alone and not inside(sparta(), diloco(2)).traits.serial_alone
    [result] = virtual_workers(1, live, Life(mode, case))
    assert identical(result["weights"], serial(case))
    assert not any(result["ledger"].values())


@pytest.mark.parametrize(("replicas", "often", "seldom"), [(2, 1, 3), (3, 2, 3), (1, 1, 2)])
def test_stated_cost_and_buffers_are_the_sums_of_the_parts_and_those_of_a_step(
    virtual_workers, replicas, often, seldom
):
    steps, parameters = 6, list(mlp().parameters())
    inner, outer = sparta(period=often), diloco(seldom)
    mode = inside(inner, outer)
    one, other, both = (each.cost(parameters, World(replicas, steps=steps)) for each in (inner, outer, mode))
    assert both.worker["all_reduce"] == pytest.approx(one.worker["all_reduce"] + other.worker["all_reduce"])
    assert both.buffers == one.buffers + other.buffers
    for result in virtual_workers(replicas, live, Life(mode, Case([[2] * replicas] * steps, model=mlp))):
        assert result["ledger"].get("all_reduce", 0) == pytest.approx(both.worker["all_reduce"] * steps, abs=0.5)
        assert result["buffers"] == both.buffers


@pytest.mark.parametrize("step", [1, 3])
def test_replicas_go_on_where_they_were_saved_inside_rounds(fabric, step):
    case = Case([[3] * 3] * 7, model=mlp)
    straight = fabric(3, live, Life(inside(sparta(period=2), diloco(4)), case))
    mode = inside(sparta(period=2), diloco(4))
    resumed = fabric(3, live, Life(mode, case, saved=saved_after(straight, step), start=step))
    for one, other in zip(straight, resumed, strict=True):
        assert all(identical(a, b) for a, b in zip(one["trajectory"][step:], other["trajectory"], strict=True))
        assert identical(one["weights"], other["weights"])


class Restless(LocalSGD):
    """Moves the weights to memory of its own."""

    def prepare(self, parameters, optimizer, comm):
        for parameter in parameters.values():
            parameter.data = parameter.data.clone()
        super().prepare(parameters, optimizer, comm)


def test_a_part_that_moves_the_weights_is_refused_by_name(virtual_workers):
    life = Life(inside(sparta(), Restless()), Case([[2, 2]]))
    with pytest.raises(Exception, match=r"sync\.parts\.outer: moves the weights"):
        virtual_workers(2, live, life)


# -- what follows from the parts


def test_a_death_is_survived_by_a_mode_whose_parts_all_survive():
    assert inside(Gossip(), NoLoCo()).traits.survives
    assert not inside(Gossip(), LocalSGD()).traits.survives


def test_an_average_goes_by_the_last_part():
    assert inside(diloco(4), sparta()).traits.averages == "own"
    assert inside(diloco(4), sparta()).traits.unaveraged == ""
    assert inside(sparta(), diloco(4)).traits.unaveraged


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["sync=bsp+sparta"], r"sync=bsp\+sparta: bsp cannot be a part\. .* Choose parts among .*diloco, .*sparta"),
        (["sync=sparta+easgd"], r"sync=sparta\+easgd: easgd cannot be a part"),
        (["sync=fedavg+asp"], r"sync=fedavg\+asp: fedavg cannot be a part"),
        (["sync=post_local_sgd+sparta"], r"sync\.parts\.post_local_sgd: its first .* Choose .*switch_step=0"),
        (["sync=sparta+sparta"], r"sync=sparta\+sparta: has sparta twice"),
        (["sync=sparta+dilco"], r"sync=sparta\+dilco: there is no choice 'dilco'; did you mean diloco"),
        (["sync=sparta+"], r"sync=sparta\+: has a \+ without a choice beside it. Choose sync=A\+B"),
        (["sync=sparta+diloco", "sync.parts.dilco.period=3"], r"did you mean sync\.parts\.diloco\.period"),
        (
            ["sync=sparta+diloco", "sync.parts.diloco._target_=paceline.strategies.sync.nope.X"],
            r"sync\.parts\.diloco\._target_=paceline\.strategies\.sync\.nope\.X: cannot import",
        ),
        (["sync=sparta+diloco", "sync.parts.diloco=5"], r"sync\.parts\.diloco=5: .* Choose sync\.parts\.diloco\.KNOB"),
        (
            ["sync=gossip+local_sgd", "sync.parts.local_sgd.average_state=[momentum_buffer]", "aggregate=median"],
            r"sync\.parts\.local_sgd\.average_state=\['momentum_buffer'\]: .*Choose sync\.parts\.local_sgd\.average_",
        ),
        (["sync=sparta_diloco", "sync.parts.diloco.period=0"], r"sync\.parts\.diloco\.period=0: must be greater"),
        (
            ["sync=sparta_diloco", "sync.parts.diloco.outer_lr=null"],
            r"sync\.parts\.diloco\.outer_momentum=0\.5: .*Choose sync\.parts\.diloco\.outer_lr",
        ),
        (["sync=sparta_diloco", "sync.parts=3"], r"sync\.parts=3: must be choices of sync by name"),
        (["sync=sparta_diloco", "~sync.parts.sparta", "~sync.parts.diloco"], r"sync\.parts=\{\}: must be choices"),
        (["sync=sparta_diloco", "+sync.parts.x=3"], r"sync\.parts\.x=3: must be a choice with its _target_"),
        (["sync=sparta_diloco", "+sync.parts.x={_target_:os.system}"], r"os\.system: must name a class in paceline"),
        (["sync=sparta+gossip", "compress=topk"], r"compress=topk: sync=sparta\+gossip takes no compress"),
        (
            ["sync=gossip_matching+local_sgd", "compress=topk"],
            r"sync\.parts\.gossip_matching\.topology=matching: .*Choose sync\.parts\.gossip_matching\.topology=ring",
        ),
        (["sync=sparta+diloco", "sync.period=8"], r"did you mean sync\.parts\.sparta\.period or sync\.parts\.diloco\."),
        (["sync=[sparta,diloco]"], r"sync: takes one choice, by its name, or several as sync=A\+B"),
        (["sync=sparta_diloco", "strategy=tensor"], r"strategy=tensor.*sync=sparta_diloco"),
    ],
)
def test_what_cannot_be_composed_is_refused_in_a_plan(overrides, says):
    with pytest.raises(ConfigError, match=says) as refused:
        prepare([*overrides, "hardware.workers=4"]).plan()
    assert refused.value.exit_code == 2


class WithMemory(Sparta):
    """A mode that states memory of its own."""

    def memory(self, held: Memory, parameters: Sequence[Tensor], replicas: int) -> Memory:
        return held


def test_a_part_has_nothing_that_only_a_whole_mode_is_asked():
    with pytest.raises(ConfigError, match=r"sync\.parts\.inner: is StatesMemory, which a part is not asked"):
        inside(WithMemory(), diloco(4))


def test_it_trains_by_its_name_alone(tmp_path, monkeypatch):
    """A run without a name of its own is named by its choices, of which one has a +."""
    monkeypatch.chdir(tmp_path)
    result = run(
        ["sync=sparta + diloco", "hardware=virtual", "hardware.workers=2", "epochs=1", "tracking=none"], quiet=True
    )
    assert "sparta_diloco" in result.path.name


# -- how a configuration says it


def test_names_joined_by_plus_are_parts_with_the_knobs_of_their_files_in_this_order():
    chosen = compose(["sync=diloco+sparta", "sync.parts.diloco.period=9"]).sync
    assert (chosen.name, chosen.target) == ("diloco+sparta", shipped("sync", "sparta_diloco").target)
    diloco, sparta = (shipped("sync", name) for name in ("diloco", "sparta"))
    assert [*chosen.knobs["parts"].items()] == [
        ("diloco", {"_target_": diloco.target, **diloco.knobs, "period": 9}),
        ("sparta", {"_target_": sparta.target, **sparta.knobs}),
    ]


def test_the_mode_with_a_file_is_sparta_then_diloco():
    assert compose(["sync=sparta_diloco"]).sync.knobs == compose(["sync=sparta+diloco"]).sync.knobs


@pytest.mark.parametrize(
    "overrides",
    [
        ["sync=diloco+sparta", "sync.parts.diloco.period=9"],
        ["sync=sparta_diloco", "sync.parts.sparta.share=0.5"],
        ["sync=sparta_diloco", "~sync.parts", "+sync.parts=${_of}"],
    ],
)
def test_a_run_is_repeated_by_its_record_with_its_order(overrides):
    other_order = "{diloco:{_target_:%s,period:4},sparta:{_target_:%s}}"
    targets = tuple(shipped("sync", name).target for name in ("diloco", "sparta"))
    experiment = compose([text.replace("${_of}", other_order % targets) for text in overrides])
    again = compose(overrides_of(experiment.model_dump()))
    assert again == experiment
    assert [*again.sync.knobs["parts"]] == [*experiment.sync.knobs["parts"]]


def test_a_part_of_the_users_own_is_found_in_their_directory(tmp_path):
    (tmp_path / "sync").mkdir()
    (tmp_path / "sync" / "mine.yaml").write_text(f"_target_: {Sparta.__module__}.Sparta\nshare: 0.25\n")
    experiment = compose(["sync=mine+local_sgd", "sync.parts.mine.share=0.5"], tmp_path)
    assert experiment.sync.knobs["parts"]["mine"] == {"_target_": f"{Sparta.__module__}.Sparta", "share": 0.5}
    assert choices_in(["sync=mine+local_sgd"]) == {"sync": "mine+local_sgd"}


def test_a_sweep_takes_composed_modes_among_others():
    assert sweep_values("sync=bsp,sparta+diloco") == ("sync", ["bsp", "sparta+diloco"])


def test_each_part_has_its_own_copy_of_what_all_take():
    aggregate = Median()
    mode = build("sync", compose(["sync=gossip+local_sgd"]).sync, Sync, (), {"aggregate": aggregate})
    assert isinstance(mode, Composed)
    gossip, local_sgd = mode.modes.values()
    assert isinstance(gossip, Gossip) and isinstance(local_sgd, LocalSGD)
    own = [aggregate, gossip.aggregation.aggregate, local_sgd.aggregation.aggregate]
    assert [type(each) for each in own] == [Median] * 3 and len({id(each) for each in own}) == 3
    assert "aggregate" in injected.accepted(mode) and "aggregate" not in injected.accepted(inside(Gossip(), sparta()))
