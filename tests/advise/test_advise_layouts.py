"""Every layout of a GPT: none that fits is dropped, memory and time are the plan's, and the front is the front."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from paceline.advise import answer as answers
from paceline.advise.accelerators import WIDE, Ground, Searched, search
from paceline.advise.answer import closed_form
from paceline.advise.candidate import Candidate, Predicted
from paceline.advise.commands import command, overrides_of
from paceline.advise.layouts import PrunedFamily
from paceline.advise.limits import beyond, meets, nearest
from paceline.advise.memory import BOUND, capacity, need
from paceline.advise.none import why_none
from paceline.advise.plans import planned
from paceline.advise.question import Question, ask
from paceline.advise.ranking import best_of_groups, exactly_ranked, front, ranked, spread
from paceline.advise.space import ways
from paceline.advise.why_not import Family, beside, families, too_much
from paceline.conf.errors import ConfigError
from paceline.engine.config.compose import compose
from paceline.engine.planning.make_plan import make_plan

GPT = ["model=gpt", "model.width=256", "model.n_head=8", "model.n_layer=6", "model.vocabulary=4000"]
TEXT = ["data=text", "data.context=128", "optimizer=adam"]
EIGHT = ["hardware=a100_8", *GPT, *TEXT]
LLAMA = ["model.n_kv_head=4", "model.ffn_width=704", "model.gated=true", "model.rms_norm=true", "model.rotary=10000"]
LLAMA = [*EIGHT, *LLAMA, "model.bias=false"]
TIGHT = 1_260_000_000  # bytes of a device, of which 1 GiB is kept back


@pytest.fixture(scope="module")
def ground() -> Ground:
    return closed_form(ask(EIGHT))


@pytest.fixture(scope="module")
def searched(ground: Ground) -> Searched:
    return search(ground)


def one_of_each(rows: list[Predicted]) -> list[Predicted]:
    """A layout of each family, shard, schedule, recomputation and precision; the one in the middle."""
    kinds: dict[object, list[Predicted]] = {}
    for row in rows:
        settings = dict(row.candidate.settings)
        which = row.candidate.family, row.candidate.shard, row.candidate.schedule, settings.get("precision")
        kinds.setdefault(which, []).append(row)
    return [its[len(its) // 2] for its in kinds.values()]


def test_each_family_is_ranked_in_the_best_precision_that_it_and_the_hardware_have(searched: Searched) -> None:
    found = {(row.candidate.family, dict(row.candidate.settings)["precision"]) for row in searched.fit}
    families = {"single", "data_parallel", "torch_ddp", "torch_fsdp", "zero", "tensor", "pipeline", "hybrid"}
    assert found == {("torch_tensor", "fp32")} | {(family, "bf16") for family in families}


def test_a_typed_precision_is_kept_and_a_family_without_it_is_left_out_by_name(ground: Ground) -> None:
    found = search(replace(ground, question=ask([*EIGHT, "precision=fp16", "hardware.workers=8"])))
    assert {dict(row.candidate.settings)["precision"] for row in found.fit} == {"fp16"}
    assert found.pruned["torch_tensor", WIDE] > 0
    wide = search(replace(ground, question=ask([*EIGHT, "precision=fp32", "hardware.workers=8"])))
    assert {dict(row.candidate.settings)["precision"] for row in wide.fit} == {"fp32"}


def test_settings_are_all_different_and_take_as_many_samples(searched: Searched, ground: Ground) -> None:
    seen = {(row.candidate.settings, row.candidate.workers) for row in searched.fit}
    assert len(seen) == len(searched.fit) > 1000
    for row in searched.fit:
        layout = row.candidate.layout
        assert layout is not None and layout.batch == ground.question.batch == 256
        assert layout.devices == row.candidate.workers in (1, 8)


@pytest.mark.slow
def test_memory_is_near_the_plan_s_and_never_so_much_more_that_something_is_dropped(
    searched: Searched, ground: Ground
) -> None:
    ratios = []
    for row in one_of_each(searched.fit):
        exact = planned(ground.question, row.candidate)
        assert exact.fits and exact.why == ""
        assert exact.seconds == row.seconds
        ratios.append(row.device / exact.device)
        assert row.device * (1 - BOUND) <= exact.device, row
        assert row.host == pytest.approx(exact.host, rel=0.02)
    near = sum(abs(ratio - 1) < 0.01 for ratio in ratios)
    assert near >= len(ratios) / 2


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("family", ["single", "zero", "tensor"])
def test_memory_and_time_of_llamas_layers_are_the_plan_s(family: str, precision: str) -> None:
    question = ask([*LLAMA, f"strategy={family}", f"precision={precision}"])
    found = [each for each in search(closed_form(question)).fit if each.candidate.family == family]
    found = [each for each in found if each.candidate.shard == 0]
    for row in (found[0], found[-1]):
        exact = planned(question, row.candidate)
        assert exact.seconds == row.seconds
        assert row.device == pytest.approx(exact.device, rel=0.01)


MIXED = ["model.experts=6", "model.active=2"]


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("layers", [EIGHT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("family", ["zero", "pipeline"])
def test_memory_and_time_of_experts_are_the_plan_s(family: str, layers: list[str], precision: str) -> None:
    question = ask([*layers, *MIXED, f"strategy={family}", f"precision={precision}"])
    found = [each for each in search(closed_form(question)).fit if each.candidate.family == family]
    for row in (found[0], found[-1]):
        exact = planned(question, row.candidate)
        assert exact.seconds == row.seconds
        assert row.device == pytest.approx(exact.device, rel=0.01)
        assert row.host == pytest.approx(exact.host, rel=0.02)


def test_experts_are_cut_over_no_tensor_workers() -> None:
    found = search(closed_form(ask([*EIGHT, *MIXED, "hardware.workers=8"])))
    assert {row.candidate.family for row in found.fit}.isdisjoint({"tensor", "torch_tensor", "hybrid"})
    assert {why for family, why in found.pruned if family in ("tensor", "hybrid")} == {
        "experts are not cut over tensor workers"
    }
    for cut, workers in (("tensor", 4), ("torch_tensor", 2), ("hybrid", 4)):
        with pytest.raises(ConfigError, match=r"^strategy\.(degree|tensor)=2: experts \(model\.experts\) are not cut"):
            make_plan(compose([*GPT, "data=text", *MIXED, f"strategy={cut}", f"hardware.workers={workers}"]))
    assert make_plan(compose([*GPT, "data=text", *MIXED, "strategy=hybrid", "strategy.tensor=1", "hardware.workers=2"]))


@pytest.mark.parametrize(
    "overrides",
    [
        GPT,
        LLAMA,
        [*LLAMA, "model.bias=true", "model.tied=true"],
        [*GPT, *MIXED],
        [*LLAMA, "model.bias=true", *MIXED],
    ],
)
def test_entries_of_a_shape_are_the_models(overrides: list[str]) -> None:
    ground = closed_form(ask([*EIGHT, *overrides, "strategy=single"]))
    plan = make_plan(compose([*EIGHT, *overrides, "strategy=single", "hardware.workers=1"]))
    assert ground.shape.entries == plan.parts[0].own


def test_a_degree_must_divide_the_feed_forward_layer() -> None:
    found = search(closed_form(ask([*EIGHT, "model.ffn_width=700", "hardware.workers=8"])))
    assert found.pruned["tensor", "700 columns are not divided by 8"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("family", ["zero", "pipeline", "hybrid"])
def test_a_plan_takes_what_is_said_to_fit(searched: Searched, ground: Ground, family: str) -> None:
    row = next(row for row in searched.fit if row.candidate.family == family)
    exact = planned(ground.question, row.candidate)
    assert exact.fits and exact.exact
    assert (exact.seconds, exact.dollars) == (row.seconds, row.dollars)
    assert row.device == pytest.approx(exact.device, rel=0.05)


def test_the_front_is_what_brute_force_finds(searched: Searched) -> None:
    rows = searched.fit[::7]

    def values(row: Predicted) -> tuple[float, float, float]:
        assert row.seconds is not None and row.dollars is not None
        return row.seconds, row.dollars, row.device

    def beaten(row: Predicted) -> bool:
        mine = values(row)
        return any(
            all(a <= b for a, b in zip(values(other), mine, strict=True)) and values(other) != mine for other in rows
        )

    expected = {values(row) for row in rows if not beaten(row)}
    found = [values(row) for row in front(rows)]
    assert set(found) == expected and len(found) == len(expected)
    assert found == sorted(found)


def test_a_spread_of_a_front_has_the_soonest_the_cheapest_and_the_least_memory() -> None:
    way = Candidate("zero", "", (), 1, 1)
    values = [(i, 9 - i if i < 4 else 20 + i, 5 if i == 6 else 90 - i) for i in range(10)]
    rows = [Predicted(way, float(s), memory, 0, 0, 0, 0.0, dollars=float(d)) for s, d, memory in values]
    assert [row.seconds for row in spread(rows, 4)] == [0.0, 3.0, 6.0, 9.0]
    assert {0.0, 3.0, 6.0} < {row.seconds for row in spread(rows, 6)} and len(spread(rows, 6)) == 6
    assert spread(rows[:4], 4) == rows[:4] and spread(rows, 10) == rows


def test_each_line_that_is_on_the_front_has_its_star(
    searched: Searched, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "closed_form", lambda _: ground)
    monkeypatch.setattr(answers, "search", lambda _: searched)
    monkeypatch.setattr(answers, "FRONT", 3)
    whole = {row.candidate for row in front(searched.fit)}
    for sort in ("dollars", "memory"):
        found = answers.answer(ground.question, sort, top=40, patience=0.0)
        shown, starred = {row.candidate for row in found.rows}, {row.candidate for row in found.front}
        assert shown & whole <= starred <= whole and len(starred - shown) <= 3
        assert [row.seconds for row in found.front] == sorted(row.seconds or 0 for row in found.front)
    assert len(whole) > len(starred)


def test_what_does_not_fit_says_by_how_much_and_the_rest_is_pruned_by_rule(ground: Ground) -> None:
    small = ground.machine.model_copy(update={"device_memory": TIGHT})
    found = search(replace(ground, machine=small))
    assert found.near and len(found.fit) + len(found.near) + sum(found.pruned.values()) == found.points
    limits = capacity(TIGHT, ground.machine.host_memory, 8, 8)
    for row in found.near[::50]:
        assert row.over_device == need(ground.shape, row.candidate, limits)[0] - limits.device
        assert "GiB too much for a device" in too_much(row)
    told = families(found.fit, found.near, found.pruned, "time")
    assert any("too much for a device" in line for family in told for line in family.others)


@pytest.mark.parametrize(
    "which",
    ["single whole", "torch_ddp whole", "data_parallel whole", "data_parallel optimizer", "data_parallel gradients"],
)
def test_a_batch_that_does_not_fit_is_tried_in_micro_batches_that_a_plan_takes(which: str) -> None:
    ground = closed_form(ask([*EIGHT, "hardware.machine.device_memory=1400000000"]))
    family, _, shard = which.partition(" ")
    found = search(ground)

    def of_it(rows: list[Predicted]) -> list[tuple[int, Predicted]]:
        """In how many micro-batches, without computing anything again."""
        told = [(dict(row.candidate.settings), row) for row in rows if row.candidate.family == family]
        return [
            (int(settings.get("accumulate", 1)), row)
            for settings, row in told
            if settings.get("sync.shard", "none") == shard.replace("whole", "none")
            and settings["model.recompute"] == "false"
        ]

    fit, too_large = dict(of_it(found.fit)), dict(of_it(found.near))
    assert 1 in too_large and max(too_large) < min(fit)
    samples = 256 if family == "single" else 32
    assert sorted([*fit, *too_large]) == [2**i for i in range(samples.bit_length())]
    row = fit[max(fit)]
    exact = planned(ground.question, row.candidate)
    assert exact.fits and exact.why == "" and exact.seconds == row.seconds
    assert row.device * (1 - BOUND) <= exact.device
    assert f" accumulate={max(fit)} " in command(ground.question, row.candidate)
    slowest_first = sorted(fit.values(), key=lambda row: -(row.seconds or 0))
    assert slowest_first[-1] is fit[min(fit)], "no more micro-batches than the memory asks for are best"


def test_the_best_of_a_group_is_better_than_its_others(searched: Searched) -> None:
    for sort in ("time", "dollars", "memory", "bytes"):
        order = ranked(searched.fit, sort)
        best = best_of_groups(searched.fit, sort)
        assert best[0] == order[0] and len(best) < 100
        assert len({(row.candidate.family, row.candidate.group, row.candidate.workers) for row in best}) == len(best)


def test_of_equals_the_simplest_comes_first_even_if_it_takes_more_memory() -> None:
    plain = Candidate("data_parallel", "", (("strategy", "data_parallel"), ("batch_size", "32")), 1, 1)
    offload = Candidate("offload", "", (("strategy", "offload"), ("batch_size", "32")), 1, 1)
    rows = [Predicted(offload, None, 10, 10, 0, 0, 0.0), Predicted(plain, None, 20, 20, 0, 0, 0.0)]
    assert [row.candidate.family for row in ranked(rows, "bytes")] == ["data_parallel", "offload"]
    assert [row.candidate.family for row in ranked(rows, "time")] == ["data_parallel", "offload"]
    assert [row.candidate.family for row in ranked(rows, "memory")] == ["offload", "data_parallel"]


def test_times_within_one_percent_of_the_best_of_them_are_equal() -> None:
    plain = Candidate("data_parallel", "", (("strategy", "data_parallel"), ("batch_size", "32")), 1, 1)
    more = Candidate("zero", "", (("strategy", "zero"), ("strategy.stage", "3"), ("batch_size", "32")), 1, 1)
    times = [(more, 1.0), (plain, 1.009), (more, 1.011), (plain, 1.02)]  # 1.02 is within 1 % of 1.011, and not of 1
    rows = [Predicted(candidate, seconds, 10, 10, 0, 0, 0.0) for candidate, seconds in times]
    assert [row.seconds for row in ranked(rows, "time")] == [1.009, 1.0, 1.02, 1.011]
    assert [row.seconds for row in exactly_ranked(rows, "time")] == [1.0, 1.009, 1.011, 1.02]
    assert beside(rows[0], rows[1], "time").endswith(": within 1%")
    assert beside(rows[3], rows[1], "time").endswith(": 1% slower")
    assert [row.seconds for row in front(rows)] == [1.0]
    tight = replace(rows[0], seconds=0.9, beyond_margin=1)
    assert beside(tight, rows[1], "time").endswith(": 11% faster, without a margin of memory")
    assert beside(replace(rows[0], device=11), rows[1], "memory").endswith(": 10% more memory")
    assert beside(rows[0], rows[1], "memory").endswith(": the same")


def test_a_family_that_every_plan_refuses_says_what_it_lacks_and_not_how_slow_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exact(question: Question, candidate: Candidate) -> Predicted:
        over = 2**30 if candidate.family in ("torch_fsdp", "hybrid") else 0
        return Predicted(candidate, 1.0, 2**30, 2**30, over, 0, 1.0, exact=True)

    monkeypatch.setattr(answers, "planned", exact)
    told = {each.name: each for each in answers.answer(ask([*EIGHT, "hardware.workers=8"])).families}
    assert told["zero"].best is not None
    for name in ("torch_fsdp", "hybrid"):
        assert told[name].best is None and told[name].others
        assert not any("slower" in line for line in told[name].others), told[name].others


def of(question: Question, ground: Ground) -> Iterator[Candidate]:
    from paceline.advise.layouts import LayoutProblem

    for way in ways(ground.shape, LayoutProblem(8, 8, question.batch, "bf16")):
        if not isinstance(way, PrunedFamily):
            yield way


def test_what_is_typed_is_kept(ground: Ground) -> None:
    fixed = ask([*EIGHT, "strategy=zero", "strategy.stage=3", "clip=norm"])
    allowed = [way for way in of(fixed, ground) if fixed.allows(dict(way.settings))]
    assert allowed
    for way in allowed:
        experiment = compose(overrides_of(fixed, way))
        assert experiment.strategy.name == "zero"
        assert experiment.strategy.knobs["stage"] == 3 and experiment.choice("clip").name == "norm"


def test_every_command_composes_to_its_settings(searched: Searched, ground: Ground) -> None:
    for row in one_of_each(searched.fit):
        experiment = compose(overrides_of(ground.question, row.candidate))
        assert experiment.strategy.name == row.candidate.family
        assert experiment.hardware.workers == row.candidate.workers
        replicas = row.candidate.layout.replicas if row.candidate.layout else 0
        assert experiment.batch_size * replicas == ground.question.batch
        for key, value in row.candidate.settings:
            group, _, knob = key.partition(".")
            if knob and group in ("strategy", "sync", "model"):
                typed = {True: "true", False: "false", None: "null"}
                stands = experiment.choice(group).knobs[knob]
                assert (typed[stands] if isinstance(stands, bool | None) else str(stands)) == value, key
        assert command(ground.question, row.candidate).startswith("paceline train hardware=a100_8 ")
    asked = replace(ground.question, overrides=(*ground.question.overrides, "data.api_key=swordfish"))
    assert " 'data.api_key=***' " in command(asked, one_of_each(searched.fit)[0].candidate)


@pytest.mark.slow
def test_hosts_that_are_fewer_cost_less_an_hour(ground: Ground) -> None:
    question = ask([*EIGHT, "hardware.hosts=4"], tokens=1e9)
    found = search(replace(ground, question=question))
    assert {row.candidate.workers for row in found.fit} == {1, 8, 16, 32}
    row = next(row for row in found.fit if row.candidate.workers == 16)
    assert row.seconds is not None and row.candidate.hosts == 2
    steps = 1e9 / (question.batch * 128)
    assert row.dollars == pytest.approx(steps * row.seconds / 3600 * 2 * 27.44705)


def test_limits_that_nothing_meets_name_what_misses_which_by_how_much(ground: Ground) -> None:
    question = replace(ground.question, tokens=1e12, budget=1.0, deadline=60.0)
    fit = search(replace(ground, question=question)).fit
    missed = nearest(question, fit)
    assert missed and all(each.dollars > 0 and each.seconds > 0 for each in missed)
    assert len({each.row.candidate.kind for each in missed}) == 3
    cheapest = min(row.dollars for row in fit if row.dollars is not None)
    assert min(each.row.dollars for each in missed if each.row.dollars is not None) == cheapest


def by_name(name: str, seconds: float, dollars: float | None) -> Predicted:
    return Predicted(Candidate("zero", name, (), 1, 1), seconds, 10, 10, 0, 0, 0.0, dollars=dollars)


@pytest.mark.parametrize(
    ("limits", "names"),
    [
        ({"deadline": 5.0}, ["quick", "even", "late"]),
        ({"budget": 5.0}, ["cheap", "late", "even"]),
        ({"deadline": 15.0, "budget": 5.0}, ["even", "cheap", "quick"]),  # late misses both
        ({"deadline": 5.0, "budget": 5.0}, ["even", "late", "cheap"]),
        ({"deadline": 90.0, "budget": 3.5}, ["cheap", "late", "even"]),
        ({"deadline": 21.0, "budget": 7.0}, ["even", "late", "cheap"]),
    ],
)
def test_what_misses_the_limits_least_is_first(ground: Ground, limits: dict[str, float], names: list[str]) -> None:
    rows = [by_name("cheap", 80, 4), by_name("quick", 10, 30), by_name("late", 30, 7), by_name("even", 20, 9)]
    missed = nearest(replace(ground.question, **limits), rows)
    assert [each.row.candidate.group for each in missed] == names


def test_without_a_price_what_misses_the_deadline_least_is_named(ground: Ground) -> None:
    rows = [by_name("late", 30, None), by_name("quick", 10, None), replace(by_name("", 1, None), seconds=None)]
    question = replace(ground.question, deadline=5.0)
    missed = nearest(question, rows)
    assert [each.row.candidate.group for each in missed] == ["quick", "late"]
    assert not meets(question, rows[-1]) and meets(ground.question, rows[-1])
    told = why_none(answers.Answer(question, "time", [], [], [], 3, 1.0, 3, None, missed=missed))
    assert "1. 10 s misses --deadline by 5 s: paceline train" in told


def test_a_family_that_fits_and_misses_the_limits_is_named_with_what_it_misses(ground: Ground) -> None:
    fit = search(ground).fit
    quick = min(row.seconds for row in fit if row.seconds is not None)
    question = replace(ground.question, deadline=quick)
    late = beyond(question, ranked(fit, "time"))
    within = [row for row in fit if meets(question, row)]
    told = families(within, [], Counter(), "time", late)
    assert {family.name for family in told} == {row.candidate.family for row in fit}
    outside = [family for family in told if family.best is None]
    assert outside and all(family.misses and "misses --deadline by" in family.others[0] for family in outside)


def test_layouts_that_are_refused_for_one_reason_are_one_line(searched: Searched) -> None:
    rows = [replace(row, why="no") for row in searched.fit if row.candidate.family == "zero"]
    stages = {row.candidate.kind for row in rows}
    (zero,) = families([], rows, Counter(), "time")
    assert len(stages) > 1 and len(zero.others) == 1
    assert zero.others[0].endswith(f" and {len(stages) - 1} more: refused: no")


def test_another_of_a_layout_is_named_where_plans_refuse_the_best_of_each(
    searched: Searched, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {(row.candidate.settings, row.candidate.workers): row for row in searched.fit}
    best = {(row.candidate.settings, row.candidate.workers) for row in best_of_groups(searched.fit, "time")}

    def by_the_plan(_: Question, candidate: Candidate) -> Predicted:
        key = candidate.settings, candidate.workers
        return replace(rows[key], why="refused") if key in best else rows[key]

    monkeypatch.setattr(answers, "planned", by_the_plan)
    found = answers.answer(ground.question)
    [row] = found.rows
    others = [row for key, row in rows.items() if key not in best]
    assert row.seconds == ranked(others, "time")[0].seconds and not found.nearest


def group_of(row: Predicted) -> tuple[str, str, int]:
    return row.candidate.family, row.candidate.group, row.candidate.workers


@pytest.mark.budget(3)
def test_what_surely_fits_is_shown_where_what_may_fit_is_faster_and_does_not(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = ask([*EIGHT, "hardware.workers=8", f"hardware.machine.device_memory={TIGHT}"])
    fit = ranked(search(replace(ground, question=question, machine=question.experiment.hardware.machine)).fit, "time")
    assert not fit[0].fits and any(row.fits for row in fit)

    def exact(_: Question, candidate: Candidate) -> Predicted:
        row = next(row for row in fit if row.candidate.settings == candidate.settings)
        return replace(row, exact=True)

    monkeypatch.setattr(answers, "planned", exact)
    for patience in (answers.PATIENCE, 0.0):  # 0: there is no time for a plan
        found = answers.answer(question, patience=patience, top=1000)
        assert all(row.fits for row in found.rows) and found.fit == sum(row.fits for row in fit)
        assert {group_of(row) for row in found.rows} == {group_of(row) for row in fit if row.fits}
        assert found.rows[0].seconds == next(row.seconds for row in fit if row.fits)
        assert not found.missed and not found.nearest
        told = [line for family in found.families for line in family.others]
        slower = {line.partition(":")[0] for line in told if line.endswith(("slower", "within 1%"))}
        assert slower <= {f"{group} on {workers} workers" for _, group, workers in map(group_of, found.rows)}
    for deadline in (1e-6, fit[0].seconds):  # the second is met by what does not fit alone
        late = answers.answer(replace(question, deadline=deadline), patience=0.0)
        assert late.missed and all(each.row.fits for each in late.missed) and not late.nearest


@pytest.mark.slow
def test_without_limits_none_is_missed_where_no_plan_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        answers, "planned", lambda _, candidate: Predicted(candidate, 1.0, 2**30, 2**30, 2**29, 0, 1.0, exact=True)
    )
    found = answers.answer(ask([*EIGHT, "hardware.workers=8"]))
    assert not found.rows and not found.missed
    first, *lines = why_none(found).splitlines()
    assert first.startswith("nothing fits, of ") and first.endswith("; the nearest:")
    assert [line[:38] for line in lines[:3]] == [f"{i}. 0.50 GiB too much for a device: pac" for i in (1, 2, 3)]
    assert len({row.candidate.kind for row in found.nearest}) == 3
    rules = replace(found, nearest=[], families=[Family("zero", None, ["a", "b"]), Family("tensor", None, ["c", "d"])])
    assert why_none(rules).splitlines()[0].endswith(" configurations can be; the reasons:")
    assert why_none(rules).splitlines()[1:] == ["1. zero: a", "2. zero: b", "3. tensor: c"]
    asked = ask(["model=gpt_1b", "data=text", "hardware=t4", "strategy=data_parallel"])
    untold = replace(rules, question=asked, families=[], notes=[])
    assert why_none(untold).endswith("1. strategy=data_parallel: no layout on this hardware has it. Leave it out.")


@pytest.mark.parametrize(
    ("overrides", "more", "says"),
    [
        (EIGHT, {"budget": 5.0}, "--budget: is of a whole training; give its tokens"),
        (EIGHT, {"deadline": 5.0}, "--deadline: is of a whole training"),
        ([*EIGHT, "hardware.machine.price_per_hour=null"], {"budget": 5.0, "tokens": 1e9}, "price_per_hour=DOLLARS"),
        (["model=gpt", "data=text"], {"budget": 5.0, "tokens": 1e9}, r"describe this machine .*calibrate\.md"),
        (["model=cnn", "data=fashion_mnist"], {"tokens": 1e9}, "are no sequences of tokens"),
        (["model=cnn", "data=fashion_mnist"], {"deadline": 5.0}, "--deadline: is of a training on tokens, and"),
        (EIGHT, {"batch": 0}, "--batch 0: is a number of samples"),
        ([*EIGHT, "name=x"], {}, "name: is of one run"),
    ],
)
def test_questions_that_make_no_sense_are_refused(overrides: list[str], more: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ask(overrides, **more)  # pyright: ignore[reportArgumentType]


def test_a_plan_that_would_take_longer_than_what_is_left_is_not_begun(
    searched: Searched, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan is made of the passes of each part."""
    clock, made = [0.0], list[Candidate]()

    def plan(_: Question, candidate: Candidate) -> Predicted:
        made.append(candidate)
        clock[0] += 1.0
        return next(row for row in searched.fit if row.candidate is candidate)

    monkeypatch.setattr(answers, "planned", plan)
    monkeypatch.setattr(answers.time, "process_time", lambda: clock[0])
    whole = [row for row in searched.fit if row.candidate.family == "zero"][:2]
    [cut] = [row for row in searched.fit if row.candidate.family == "pipeline" and row.candidate.schedule == "gpipe"][
        :1
    ]
    check = answers.Checked(ground.question, until=2.5)
    assert check.first([whole[0], cut, whole[1]], 3) == [whole[0], cut, whole[1]]
    assert made == [whole[0].candidate, whole[1].candidate] and check.unchecked == {cut.candidate}
