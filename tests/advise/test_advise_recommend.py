"""The recommendation: limits of the best, the next best and why it loses, and one thing to try."""

from dataclasses import replace

import pytest

from paceline.advise import recommend as room
from paceline.advise.answer import Answer, answer, sure_first
from paceline.advise.plans import planned
from paceline.advise.question import ask
from paceline.advise.ranking import best_of_groups, roomy_first
from paceline.advise.recommend import recommend
from paceline.cli.advise_recommended import recommended
from paceline.cli.advise_view import cells, columns, for_people

GPT = ["model=gpt_100m", "data=tokens", "hardware=h100_8", "hardware.workers=8"]


@pytest.fixture(scope="module")
def found() -> Answer:
    return answer(ask([*GPT, "precision=bf16"]), patience=0.0)


def test_shares_of_a_step_add_up_and_the_next_best_is_of_another_family(found: Answer) -> None:
    best = recommend(found)
    assert sum(best.limits.values()) == pytest.approx(1)
    assert list(best.limits.values()) == sorted(best.limits.values(), reverse=True)
    bests = [each.best for each in found.families if each.best is not None]
    assert best.after in bests and best.after is not None
    assert best.after.candidate.family != best.row.candidate.family
    others = [each.seconds or 0 for each in bests if each.candidate.family != best.row.candidate.family]
    assert best.after.seconds == min(others)
    assert best.longer is None  # zero takes as long, and a setting more


def test_the_part_that_makes_the_next_best_slower_is_named(found: Answer) -> None:
    tensor = [each for each in found.families if each.name == "tensor"]
    longer = recommend(replace(found, families=tensor)).longer
    assert longer is not None and longer[0] == "tensor" and longer[1] > 0


def test_what_must_be_raced_is_next_best_only_if_nothing_else_is(found: Answer) -> None:
    tensor = next(each for each in found.families if each.name == "tensor")
    assert tensor.best is not None
    row = replace(tensor.best, seconds=0.0, candidate=replace(tensor.best.candidate, raced="must be raced"))
    raced = replace(tensor, name="raced", best=row)
    assert recommend(replace(found, families=[tensor, raced])).after == tensor.best
    assert recommend(replace(found, families=[raced])).after == row


def test_memory_that_a_device_has_is_the_same_whether_the_row_fits_or_not(found: Answer) -> None:
    row = found.rows[0]
    rooms = {
        recommend(replace(found, rows=[replace(row, device=row.device + by, over_device=row.over_device + by)])).room
        for by in (0, 2**40)
    }
    assert rooms == {row.device - row.over_device}
    cpu = replace(row, over_device=0, host=5, over_host=-7)
    assert recommend(replace(found, rows=[cpu])).room == 12
    assert recommend(replace(found, rows=[replace(cpu, over_host=0)])).room is None


def test_a_larger_batch_is_tried_if_it_saves_enough_and_else_faster_hardware(found: Answer, monkeypatch) -> None:
    change = recommend(found).change
    assert change is not None and change.what == "--batch 512" and change.saves >= room.WORTH
    monkeypatch.setattr(room, "WORTH", 1.0)
    change = recommend(found).change
    assert change is not None and change.what == "memory of the devices twice as fast"
    typed = replace(found.question, overrides=(*found.question.overrides, "strategy.micro_batches=1"))
    monkeypatch.setattr(room, "WORTH", 0.0)
    change = recommend(replace(found, question=typed)).change
    assert change is not None and "--batch" not in change.what


def test_a_family_alone_is_followed_by_its_next_layout(found: Answer) -> None:
    first, second = found.rows[:2]
    alone = [each for each in found.families if each.name == first.candidate.family]
    assert recommend(replace(found, families=alone)).after == second
    assert recommend(replace(found, families=alone, rows=[first])).after is None


def test_a_row_without_the_margin_of_published_runs_comes_after_those_with_it(found: Answer) -> None:
    fast, slow = found.rows[0], found.rows[-1]
    assert (fast.seconds or 0) < (slow.seconds or 0)
    tight = replace(fast, beyond_margin=1)
    assert tight.fits and not tight.roomy
    assert roomy_first([tight, slow], "time") == [slow, tight]
    assert roomy_first([fast, slow], "time") == [fast, slow]
    roomy = replace(tight, beyond_margin=0, seconds=2 * (tight.seconds or 0))
    assert roomy_first([tight, roomy], "time") == [roomy]  # of one group: the slower one that has it
    assert sure_first([tight, roomy, slow], "time") == [*best_of_groups([roomy, slow], "time")]
    assert sure_first([tight, slow], "time") == [slow, tight]


def test_the_margin_is_the_high_end_of_the_software_s_runs(found: Answer) -> None:
    for row in found.rows:
        use = recommend(replace(found, rows=[row])).use
        deepspeed = row.candidate.family == "zero"
        assert use is not None and use.published is not None
        assert use.published.software == ("DeepSpeed" if deepspeed else "PyTorch")
        assert row.beyond_margin == use.beyond_margin == int(use.held * use.published.high) - use.device_memory


def test_an_exact_plan_has_the_margin_and_people_read_where_it_lacks(found: Answer) -> None:
    row = found.rows[0]
    exact = planned(found.question, row.candidate)
    use = recommend(replace(found, rows=[exact])).use
    assert use is not None and exact.exact and exact.beyond_margin == use.beyond_margin < 0
    assert exact.roomy and cells(found, exact, 1)[columns(found).index("memory")].endswith("B")
    tight = replace(exact, beyond_margin=1)
    assert cells(found, tight, 1)[columns(found).index("memory")].endswith("B!")
    for each, says in ((exact, "as published runs, of 79.2 GiB)"), (tight, ": it may run out of memory)")):
        assert recommended(replace(found, rows=[each]))[2].endswith(says)
    footnotes = for_people(found)
    assert "memory: a margin is left for what published runs held beside their prediction, 12% of it under" in footnotes
