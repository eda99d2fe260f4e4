"""The recommendation: limits of the best, the next best and why it loses, and one thing to try."""

from dataclasses import replace

import pytest

from paceline.advise import recommend as room
from paceline.advise.answer import Answer, answer
from paceline.advise.question import ask
from paceline.advise.recommend import recommend

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
    assert best.longer is not None and best.longer[0] == "compute"


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
