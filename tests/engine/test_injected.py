"""A group whose choice is given to the sync mode or strategy that has a parameter of its name."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import create_model
from zealous import GROUP, Eager, Zealous, ZealousStrategy

from paceline.conf import groups
from paceline.conf.errors import ConfigError
from paceline.conf.groups import GROUPS
from paceline.engine.config.compose import compose
from paceline.engine.config.experiment import Choice, Experiment, shipped
from paceline.engine.features import injected
from paceline.engine.features.feature import Parts
from paceline.engine.planning.build import assemble
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync.easgd_async import AsyncEASGD

CHOICES = {
    "calm": Choice(name="calm", target="zealous.Calm", knobs={}),
    "eager": Choice(name="eager", target="zealous.Eager", knobs={"most": 3}),
    "bsp": shipped("sync", "bsp"),
    "zealous": Choice(name="zealous", target="zealous.Zealous", knobs={}),
    "zealous_bsp": Choice(name="bsp", target="zealous.ZealousMean", knobs={}),
    "plain": shipped("strategy", "data_parallel"),
    "own": shipped("strategy", "torch_ddp"),
    "keen": Choice(name="keen", target="zealous.ZealousStrategy", knobs={}),
}
WithZeal = create_model("WithZeal", __base__=Experiment, zeal=Choice)


@pytest.fixture
def assembled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Parts]:
    """What is built where the table has one more group."""
    plain = compose(["model.hidden=[4]"]).model_dump()
    monkeypatch.setattr(groups, "GROUPS", (*GROUPS, GROUP))
    monkeypatch.setitem(groups.BY_NAME, "zeal", GROUP)
    for module in ("injected", "compatibility"):
        monkeypatch.setattr(
            f"paceline.engine.features.{module}.shipped", lambda *of: CHOICES["calm"] if "zeal" in of else shipped(*of)
        )

    def assemble_with(
        zeal: str, sync: str = "zealous", strategy: str = "plain", knobs: dict[str, Any] | None = None
    ) -> Parts:
        chosen = {group: CHOICES[name].model_dump() for group, name in (("zeal", zeal), ("sync", sync))}
        chosen["strategy"] = CHOICES[strategy].model_dump()
        chosen["sync"]["knobs"] |= knobs or {}
        return assemble(WithZeal.model_validate(plain | chosen), ("zealous",))

    return assemble_with


def test_the_choice_is_passed_with_its_knobs_to_the_sync_mode_that_has_a_parameter_of_its_name(assembled) -> None:
    sync = assembled("eager").sync
    assert isinstance(sync, Zealous) and isinstance(sync.zeal, Eager) and (sync.zeal.most, sync.zeal.seed) == (3, 0)


def test_each_worker_has_one_of_its_own(assembled) -> None:
    parts = assembled("eager")
    _, another = parts.make_pair()
    assert isinstance(another, Zealous) and isinstance(parts.sync, Zealous)
    assert another.zeal is not parts.sync.zeal


def test_a_strategy_may_take_it_where_the_sync_mode_does_not(assembled) -> None:
    strategy = assembled("eager", "bsp", "keen").strategy
    assert isinstance(strategy, ZealousStrategy) and isinstance(strategy.zeal, Eager)


@pytest.mark.parametrize(("sync", "strategy"), [("bsp", "plain"), ("bsp", "own"), ("zealous", "plain")])
def test_the_usual_choice_goes_with_all(assembled, sync: str, strategy: str) -> None:
    assert assembled("calm", sync, strategy).sync


def test_another_choice_is_refused_by_name_where_nobody_has_a_use_for_it(assembled) -> None:
    with pytest.raises(ConfigError) as caught:
        assembled("eager", "bsp")
    assert str(caught.value) == ("zeal=eager: sync=bsp takes no zeal. Choose zeal=calm.")


def test_the_usual_choice_with_another_class_is_none(assembled, monkeypatch) -> None:
    monkeypatch.setitem(CHOICES, "changed", Choice(name="calm", target="zealous.Eager", knobs={}))
    with pytest.raises(ConfigError, match=r"^zeal\._target_=zealous\.Eager: sync=bsp takes no zeal"):
        assembled("changed", "bsp")


def test_where_the_strategy_owns_its_update_what_the_sync_mode_takes_does_not_count(assembled) -> None:
    with pytest.raises(ConfigError) as caught:
        assembled("eager", "zealous_bsp", "own")
    assert str(caught.value) == (
        "zeal=eager: strategy=torch_ddp owns its update, and takes no zeal. Choose "
        "strategy=data_parallel, offload, pipeline or tensor, or zeal=calm."
    )


def test_a_refusal_names_our_own_choices_that_take_it(assembled, monkeypatch) -> None:
    usual = AsyncEASGD.__init__

    def takes(
        self: AsyncEASGD, zeal: object, rho: float | None = None, period: int = 1, nesterov: bool = False
    ) -> None:
        usual(self, rho, period, nesterov)

    monkeypatch.setattr(AsyncEASGD, "__init__", takes)
    with pytest.raises(ConfigError, match=r"Choose sync=easgd_async or easgd_momentum, or zeal=calm\."):
        assembled("eager", "bsp")


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        (("sync=asp", "privacy=dp_sgd"), "sync=asp takes no privacy. Choose sync=bsp or bsp_naive, or privacy=none"),
        (("sync=fedbuff", "privacy=dp_fedavg"), "sync=fedbuff takes no privacy. Choose sync=fedavg, or privacy=none"),
        (("sync=easgd", "aggregate=zeno"), "sync=easgd takes no aggregate. Choose sync=asp, or aggregate=mean"),
        (("sync=easgd_async", "compress=topk"), "sync=easgd_async takes no compress. Choose sync=easgd, bsp, asp, "),
        (("strategy=zero", "compress=topk"), "strategy=zero owns its update, and takes no compress. Choose strategy="),
    ],
)
def test_what_takes_a_choice_is_asked_about_that_choice_in_that_place(asked, taken) -> None:
    """Not every mode that takes a group takes each of its choices."""
    with pytest.raises(ConfigError) as caught:
        assemble(compose(["hardware.workers=6", *asked]), ())
    assert f": {taken}" in str(caught.value)


def test_a_knob_of_the_same_name_is_no_knob(assembled) -> None:
    with pytest.raises(ConfigError, match=r"^sync\.zeal: Zealous has no such parameter; zeal=\.\.\. chooses it$"):
        assembled("eager", knobs={"zeal": "other"})


def test_what_takes_a_group_is_told_of_each_pair(assembled) -> None:
    assert injected.accepted(Zealous) == injected.accepted(DataParallel, ZealousStrategy) == ["zeal"]
    assert injected.accepted(DataParallel) == []


def test_without_its_usual_choice_a_given_group_cannot_be_declared() -> None:
    with pytest.raises(AssertionError, match="usual"):
        groups.ConfigGroup("zeal", "", modules=(), base="zealous.Zeal", injected=True)
