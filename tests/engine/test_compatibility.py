"""Needs and what others lack: the vocabulary, and the refusals that a run is given."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from choices import CHOICES, STRATEGIES, SYNCS
from declared import unmet_terms

from paceline.conf.errors import ConfigError
from paceline.engine.config.compose import compose
from paceline.engine.config.experiment import CONF, shipped
from paceline.engine.config.targets import base_of, build
from paceline.engine.features import injected
from paceline.engine.planning.build import assemble
from paceline.exchange.compress import Compressor, TopK
from paceline.strategies.core import terms
from paceline.strategies.core.terms import (
    ADDABLE,
    FOR_CHANGES,
    LOSSLESS,
    ROWS_TOGETHER,
    SKIPS,
    TOGETHER,
    VOCABULARY,
    WHOLE_REPLICA,
    Compatible,
    Need,
    Term,
    lacks_of,
    needs_of,
)
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync.bsp import BSP

GIVEN = [group.name for group in injected.injected_groups()]


def every_choice() -> list[tuple[str, str, Compatible]]:
    found: list[tuple[str, str, Compatible]] = [("strategy", name, each) for name, each in STRATEGIES.items()]
    found += [("sync", name, each) for name, each in SYNCS.items()]
    for group in GIVEN:
        for file in sorted((CONF / group).glob("*.yaml")):
            chosen = build(group, shipped(group, file.stem), base_of(group), (), {"seed": 0})
            if isinstance(chosen, Compatible):
                found.append((group, file.stem, chosen))
    return found


def refusal_of(*overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        assemble(compose(["hardware.workers=6", *overrides]), ())
    assert caught.value.refusals
    return caught.value


def test_each_term_is_a_sentence_about_a_choice_of_its_group() -> None:
    assert len({(term.group, term.name) for term in VOCABULARY}) == len(VOCABULARY) > 30
    verbs = re.compile(r"[a-z]+s |can |cannot |does ")
    for term in VOCABULARY:
        assert verbs.match(term.offered) and verbs.match(term.lacking), term
        assert term.group in {"strategy", "sync", *GIVEN}


def test_a_choice_lacks_terms_of_its_own_group_and_needs_those_of_others() -> None:
    for group, name, each in every_choice():
        assert {term.group for term in lacks_of(each)} <= {group}, name
        assert group not in {need.term.group for need in needs_of(each)}, name
        assert all(need.because for need in needs_of(each)), name


def test_each_term_is_lacking_somewhere_and_needed_somewhere() -> None:
    """By a knob or a feature, where not by a choice as its file has it."""
    sources = [path for room in ("strategies", "exchange", "engine") for path in (CONF.parent / room).rglob("*.py")]
    words = Counter(
        word for path in sources if path.name != "terms.py" for word in re.findall(r"\b[A-Z_]+\b", path.read_text())
    )
    of_users = {"SHOWN_GRADIENTS"}  # features that users write need it
    names = [name for name, term in vars(terms).items() if term in VOCABULARY and name not in of_users]
    assert [name for name in names if words[name] < 4] == [], "each is imported and used, twice at least"


@pytest.mark.parametrize(
    ("overrides", "alternatives"),
    [
        (["strategy=tensor", "sync=asp"], r"Choose sync=bsp, .*, or strategy=data_parallel, offload or pipeline\."),
        (["sync=local_sgd", "compress=signsgd"], r"Choose compress=none, .*, or sync=bsp, "),
        (["compress=topk", "collective=ring"], r"Choose compress=none, .*, or collective=fabric\."),
        (["strategy=pipeline", "aggregate=krum"], r"Choose strategy=data_parallel or offload, or aggregate=mean, "),
        (
            ["strategy=zero", "compress=topk"],
            r"Choose strategy=data_parallel, offload or pipeline, or compress=none\.$",
        ),
        (["sync=bsp", "privacy=dp_fedavg"], r"Choose sync=fedavg, or privacy=dp_sgd or none\.$"),
        (["sync=push_sum", "average=ema"], r"Choose average=none, or sync=bsp, "),
        (["sync=easgd", "aggregate=draco"], r"Choose sync=bsp or parameter_server, or aggregate=mean\.$"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_each_choice_that_a_refusal_names_goes(overrides: list[str], alternatives: str) -> None:
    text = str(refusal_of(*overrides))
    assert re.search(alternatives, text), text
    for group, names in re.findall(r"(\w+)=([a-z_0-9]+(?:, [a-z_0-9]+)*(?: or [a-z_0-9]+)?)", text.split("Choose ")[1]):
        for name in re.split(r", | or ", names):
            if (CONF / group / f"{name}.yaml").is_file():
                others = [each for each in overrides if not each.startswith(f"{group}=")]
                assemble(compose(["hardware.workers=6", *others, f"{group}={name}"]), ())


@pytest.mark.parametrize(
    ("overrides", "alternatives"),
    [
        (["model=resnet", "sync=asp", "strategy.batch_norm=all"], "Choose strategy.batch_norm=replica, or sync=bsp, "),
        (
            ["strategy=pipeline", "strategy.schedule=pipedream", "sync=asp"],
            "Choose strategy.schedule=gpipe, or sync=bsp",
        ),
        (["sync=asp", "sync.servers=2", "attack=mimic"], "Choose sync=parameter_server, or attack=none, "),
        (["sync=asp", "sync.servers=2", "aggregate=krum"], r"Choose sync=[a-z_, ]* others without sync.servers, or "),
        (["sync=fedavg", "sync.sampling=weighted", "average=swa"], r"or sync=bsp, .* without sync.sampling\."),
        (["sync=parameter_server", "sync.servers=2", "aggregate=krum"], r"Choose sync.servers=1, or "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_alternatives_keep_what_was_typed_or_say_what_to_leave_out(overrides: list[str], alternatives: str) -> None:
    error = refusal_of(*overrides)
    assert re.search(alternatives, str(error)), error
    for each in error.refusals[0].instead[:4]:
        others = [told for told in overrides if told.partition("=")[0] not in (each.key, *each.without)]
        assemble(compose(["hardware.workers=6", *others, f"{each.key}={each.value}"]), ())


def test_alternatives_fit_the_model_too() -> None:
    [refusal] = refusal_of("strategy=torch_fsdp", "sync=easgd_round_robin", "model=gpt", "data=text").refusals
    names = [each.value for each in refusal.instead if each.key == "strategy"]
    assert "data_parallel" in names and "domain" not in names, "text has no images to cut by rows"


def test_all_reasons_are_told_at_once() -> None:
    error = refusal_of("strategy=tensor", "sync=asp", "average=swa", "aggregate=krum", "clip=norm")
    keys = [each.key for each in error.refusals]
    assert keys == ["strategy=tensor", "aggregate=krum", "aggregate=krum"]
    assert len(str(error).splitlines()) == 3
    assert all(each.instead and each.reasons for each in error.refusals)


def test_what_parts_share_counts_for_the_choices_that_are_named() -> None:
    tied = ["strategy=pipeline", "strategy.stages=2", "model=gpt", "data=text", "model.tied=true", "compress=topk"]
    assert "Choose compress=none, bf16, fp16 or threshold, or" in str(refusal_of(*tied))


def test_where_a_mode_lacks_a_term_by_what_it_is_given_that_choice_is_named() -> None:
    asked = ["model=kmeans", "task=reconstruction", "optimizer=lloyd", "compress=topk"]
    assert str(refusal_of(*asked)).endswith(". Choose compress=none.")


def test_knobs_add_needs_and_what_is_lacking() -> None:
    wide = BSP(shard="gradients")
    assert not unmet_terms(wide) and {need.key for need in wide.needs} == {"sync.shard=gradients"}
    text = str(refusal_of("sync.shard=gradients", "compress=topk"))
    assert text.startswith("sync.shard=gradients: ") and "Choose sync.shard=none, or compress=none" in text


class Particular(BSP):
    """A mode of a user's, with needs of its own."""

    def __init__(self, compress: Compressor | None = None) -> None:
        super().__init__(compress=compress)
        needs = Need(WHOLE_REPLICA, "wants the model whole"), Need(ADDABLE, "adds messages up")
        self.traits = replace(self.traits, requires=needs)


def test_a_users_class_is_held_to_what_it_declares() -> None:
    assert unmet_terms(Particular(), STRATEGIES["pipeline"]) == {WHOLE_REPLICA}
    assert unmet_terms(Particular(compress=TopK()), compress=TopK()) == {ADDABLE}
    assert not unmet_terms(Particular())


class Stubborn(Particular):
    """A mode that says more of what it lacks, and does not repeat what its base class says."""

    @property
    def lacks(self) -> Mapping[Term, str]:
        return {SKIPS: "keeps going"}

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need(LOSSLESS, "counts on each bit"),)


def test_what_a_subclass_says_adds_to_its_base_classes() -> None:
    assert {SKIPS, *lacks_of(Particular())} == {*lacks_of(Stubborn())} > {SKIPS}
    assert {need.term for need in needs_of(Stubborn())} >= {WHOLE_REPLICA, ADDABLE, LOSSLESS}
    assert unmet_terms(Stubborn(compress=TopK()), compress=TopK()) == {ADDABLE, LOSSLESS}


def test_a_term_of_no_group_is_refused() -> None:
    mode = Particular()
    mode.traits = replace(mode.traits, requires=(Need(Term("compres", "lossless", "keeps", "loses"), "counts"),))
    with pytest.raises(ConfigError, match="needs the term 'lossless' of 'compres', which is not"):
        unmet_terms(mode)


def test_what_a_strategy_shares_is_known_once_the_model_is_cut() -> None:
    """A pipeline whose first and last stages share a weight takes modes that step together."""
    tied = ["strategy=pipeline", "model=gpt", "data=text", "model.tied=true", "strategy.stages=2", "hardware.workers=4"]
    assert TOGETHER not in unmet_terms(SYNCS["asp"], STRATEGIES["pipeline"])
    with pytest.raises(ConfigError, match="strategy=pipeline: holds some parameters whole on several workers"):
        assemble(compose([*tied, "sync=asp"]), ())


@pytest.mark.parametrize(("group", "names"), [("strategy", CHOICES["strategy"]), ("sync", CHOICES["sync"])])
def test_what_a_mode_lacks_is_what_its_traits_say(group: str, names: Sequence[str]) -> None:
    for name in names:
        if group == "sync":
            traits = SYNCS[name].traits
            assert (TOGETHER in SYNCS[name].lacks) == (not traits.synchronous)
            assert (ROWS_TOGETHER in SYNCS[name].lacks) == traits.one_by_one
            assert (FOR_CHANGES in {need.term for need in SYNCS[name].needs}) == traits.sends_changes
        else:
            assert (WHOLE_REPLICA in STRATEGIES[name].lacks) == (STRATEGIES[name].parts > 1)
    assert WHOLE_REPLICA not in DataParallel().lacks
