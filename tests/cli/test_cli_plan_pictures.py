"""`paceline plan --html`: the pictures of a plan, and what it says where there is none."""

import re
from pathlib import Path

from paceline import engine
from paceline.cli.plan_pictures import pictures
from paceline.engine.predict.roofline import roofline

GPT = ["hardware=a100_8", "hardware.workers=2", "model=gpt", "data=text", "optimizer=adam"]


def test_a_plan_on_an_accelerator_has_all_pictures_and_a_roofline_under_its_roof(paceline, here: Path) -> None:
    schedule = ["strategy=pipeline", "strategy.schedule=1f1b", "strategy.micro_batches=4"]
    ended = paceline("plan", *GPT, *schedule, "--html", "plan.html")
    assert ended.status == 0 and ended.err.endswith("pictures: plan.html\n")
    page = (here / "plan.html").read_text()
    heads = re.findall(r"<h2>(.*?)</h2>", page)
    assert [head.split(" of ")[0] for head in heads] == [
        "Memory over a step",
        "Where a step goes",
        "Schedule",
        "Roofline",
    ]
    assert page.count("<svg") == 4 and "the device has" in page and "predicted: compute" in page
    assert "<script" not in page and not re.search(r"(src|href)=", page.replace("default-src", ""))
    roof, points = roofline(engine.prepare(GPT).plan())
    assert len(points) == 6 and all(0 < each.rate <= roof.at(each.intensity) for each in points)


def test_what_is_not_predicted_has_no_picture_and_says_why() -> None:
    prepared = engine.prepare(["hardware.workers=2"])
    found = {each.title.split(" of ")[0]: each for each in pictures(prepared, prepared.plan(), None)}
    assert found["Memory over a step"].svg is not None and "(hardware.machine)" in found["Memory over a step"].says
    assert (
        found["Roofline"].svg is None
        and "There is no roof: hardware.machine names no accelerator" in found["Roofline"].says
    )
    step = found["Where a step goes"]
    assert (step.svg is None) == step.says.startswith("Its time is not predicted: ")


def test_many_plans_have_no_page(paceline) -> None:
    ended = paceline("plan", "--fit", "hardware=h200", "--html", "a.html")
    assert ended.status == 2 and ended.last.startswith("--html: pictures one plan, and --fit makes many")
