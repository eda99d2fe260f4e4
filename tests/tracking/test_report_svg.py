"""The report's pictures: memory over a step, each worker's step, topologies; what they say and what they lack."""

import io
import json
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from browser import Browser
from recorded import directory
from some_runs import recorded, seeds_of

from paceline.tracking.drawn import memory, png, roofline, steps, topologies
from paceline.tracking.drawn.roofline import Roof, RooflinePoint
from paceline.tracking.drawn.topologies import HeatMapCell
from paceline.tracking.figures.palette import DARK, LIGHT
from paceline.tracking.prediction import seconds_by_part
from paceline.tracking.report import write_report
from paceline.tracking.report.document import document
from paceline.tracking.run_data import RunData, Swept
from paceline.tracking.sources import from_directory

SVG = "{http://www.w3.org/2000/svg}"
HELD = {"parameters": 100, "gradients": 90, "optimizer": 80, "activations": 70, "buffers": 10}


def worker(rank: int, compute: float, waiting: float = 0.0, hidden: float = 0.0) -> dict[str, float]:
    return {"rank": rank, "compute": compute, "hidden": hidden, "communication": 1.0, "waiting": waiting}


ONE_SLOW = [worker(0, 2.0, 4.0), worker(1, 6.0), worker(2, 2.2, 3.8, hidden=1.0)]


def pictured(run: RunData, *others: RunData) -> dict[str, Any]:
    """The sections of pictures, by id."""
    return {part["id"]: part for part in document([run, *others])["pictures"]}


def titles(svg: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(svg).iter(f"{SVG}title")]


def drawn(part: dict[str, Any], place: int = 0) -> str:
    [image] = part["figures"][place]["pictures"]
    assert image["alt"] == part["figures"][place]["says"]
    return b64decode(image["source"].removeprefix("data:image/svg+xml;base64,")).decode()


# -- memory


def test_a_step_holds_activations_until_backward_and_gradients_from_there() -> None:
    moments = memory.over_a_step(HELD)
    assert [sum(kinds.values()) for kinds in moments.values()] == [190, 260, 350, 280]
    assert "gradients" not in moments["end of forward"] and "activations" not in moments["optimizer's step"]


def test_the_cap_and_the_error_of_the_prediction_are_said_and_what_is_not_known_too() -> None:
    assert "The prediction is +10.0 % off" in memory.in_words({"parameters": 110}, {"parameters": 100}, None)
    assert "not known (hardware.machine)" in memory.in_words(HELD, None, None)
    assert "Nothing is measured" in memory.in_words(HELD, None, None)
    assert "350%" in memory.in_words(HELD, None, 100.0) and "does not fit" in memory.in_words(HELD, None, 100.0)
    assert "does not fit" not in memory.in_words(HELD, HELD, 350.0)
    with_cap, without = (memory.as_svg("m", HELD, None, cap) for cap in (700.0, None))
    assert "the device has 700 B" in with_cap and "the device has" not in without


# -- steps


@pytest.mark.parametrize(
    ("workers", "found"),
    [
        (ONE_SLOW, 1),
        ([worker(0, 2.0), worker(1, 6.0), worker(2, 2.0)], None),  # nobody waits for it
        ([worker(0, 2.0, 1.0), worker(1, 2.1, 1.0)], None),  # alike
        ([worker(0, 2.0)], None),
        ([], None),
    ],
)
def test_the_straggler_is_who_computes_longest_while_others_wait(workers: list[Any], found: int | None) -> None:
    assert steps.straggler(workers) == found
    said = steps.in_words(workers, None)
    assert ("The straggler is worker 1" in said) == (found == 1)
    assert ("worker 1, slowest" in steps.as_svg("s", workers, None)) == (found == 1)


def test_hidden_communication_is_a_part_of_compute() -> None:
    shown = titles(steps.as_svg("s", ONE_SLOW, None))
    assert "worker 2: compute 1.2 s" in shown and "worker 2: compute with communication under way, at most 1 s" in shown
    assert "worker 2: waiting 3.8 s" in shown and "worker 2: communication 1 s" in shown


def test_a_prediction_is_drawn_beside_and_its_error_is_said() -> None:
    predicted = {"compute": 3.0, "data": 4.0}
    assert {"predicted: compute 3 s", "predicted: data 4 s"} <= set(titles(steps.as_svg("s", ONE_SLOW, predicted)))
    assert "Predicted: 7 s, +0 % off" in steps.in_words(ONE_SLOW, predicted)
    assert "Nothing was predicted" in steps.in_words(ONE_SLOW, None)


# -- topologies and the roofline


def test_the_best_measured_is_ringed_once_and_what_does_not_fit_is_hatched() -> None:
    cells = [
        HeatMapCell(1, 1, 90.0, 100.0),
        HeatMapCell(2, 1, 130.0, 120.0),
        HeatMapCell(1, 2, 50.0),
        HeatMapCell(2, 2, fits=False),
    ]
    svg = ET.fromstring(topologies.as_svg("t", "tensor", "stage", cells))
    classes = [each.get("class", "") for each in svg.iter(f"{SVG}rect")]
    assert sum("ring" in each.split() for each in classes) == 1
    assert sum(each.get("fill") == "url(#no)" for each in svg.iter(f"{SVG}rect")) == 2  # in both panels
    said = topologies.in_words("tensor", "stage", cells)
    assert (
        "The best measured is tensor 2 x stage 1, 120 samples/s" in said and "1 do not fit: tensor 2 x stage 2" in said
    )
    estimated = ET.fromstring(topologies.as_svg("t", "tensor", "stage", [HeatMapCell(1, 1, 5.0)]))
    assert not any("ring" in each.get("class", "").split() for each in estimated.iter(f"{SVG}rect"))


def test_a_point_is_bound_by_memory_left_of_the_ridge() -> None:
    roof = Roof("device", peak=100e9, bandwidth=10e9)
    assert roof.ridge == 10 and roof.at(1) == 10e9 and roof.at(1000) == 100e9
    points = [RooflinePoint("add", 0.5, 4e9), RooflinePoint("product", 100.0, 50e9, measured=True)]
    said = roofline.in_words(roof, points)
    assert "add: 4 GF/s, 80% of what its 0.5 flops a byte allow (memory)" in said
    assert "product (measured): 50 GF/s, 50% of what its 100 flops a byte allow (compute)" in said
    assert len([each for each in titles(roofline.as_svg("r", roof, points)) if " of the roof there" in each]) == 2


# -- in the report


def test_a_run_has_the_pictures_of_what_it_recorded_and_no_others() -> None:
    parts = pictured(recorded("mine"))
    assert set(parts) == {"memory-step"}
    told = recorded("mine", summary={"per_worker": [{"median": 7.0, **each} for each in ONE_SLOW]})
    assert set(pictured(told)) == {"step-workers", "memory-step"}
    assert "worker 1, slowest" in drawn(pictured(told)["step-workers"])
    nothing = replace(told, summary={"name": "n", "status": "failed", "per_worker": [3, {"rank": "x"}, {"rank": 1}]})
    assert pictured(nothing) == {}


def test_of_several_seeds_one_has_pictures() -> None:
    found = pictured(*seeds_of(0, "bsp", 3), recorded("alone", number=1, sync="asp"))["memory-step"]
    assert [figure["name"] for figure in found["figures"]] == ["0000-bsp-s0", "alone"]
    assert found["note"] == "Of a setting with several seeds, the first seed is shown."


def test_the_cap_is_that_of_the_runs_machine() -> None:
    config = {"hardware": {"machine": {"device_memory": 2**30}}}
    assert "the device has 1.0 GiB" in drawn(pictured(recorded("mine", config=config))["memory-step"])
    assert "the device has" not in drawn(pictured(recorded("mine"))["memory-step"])


def test_layouts_of_one_model_are_a_heat_map() -> None:
    sizes = [(1, 1, 100.0), (2, 1, 300.0), (1, 2, 200.0)]
    runs = [
        recorded(f"t{tensor}s{stage}", summary={"mesh": {"tensor": tensor, "stage": stage}, "throughput": rate})
        for tensor, stage, rate in sizes
    ]
    part = pictured(*runs)["topologies"]
    assert "The best measured is tensor 2 x stage 1, 300 samples/s" in part["figures"][0]["says"]
    assert "topologies" not in pictured(*runs[:2])  # they differ along one axis


def test_a_prediction_is_read_from_the_runs_file_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    made = directory(tmp_path, "mine")
    assert seconds_by_part(from_directory(made)) is None
    file = made.path / "prediction.json"
    file.write_text(json.dumps({"seconds": 3.0, "parts": {"compute": 2.0, "data": 1.0, "bubble": 0.0, "odd": "x"}}))
    assert seconds_by_part(from_directory(made)) == {"compute": 2.0, "data": 1.0}
    for damaged in ("[]", "{", '{"parts": 3}'):
        file.write_text(damaged)
        assert seconds_by_part(from_directory(made)) is None


def test_accuracy_is_drawn_against_bytes_and_staleness_across_families() -> None:
    syncs = [("bsp", None), ("asp", {"mean": 3.0, "max": 5, "histogram": {}}), ("ssp", {"mean": 2.0, "max": 3})]
    runs = [
        recorded(
            sync, sync=sync, summary={"staleness": stale, "wire": {"bytes_per_step": 10, "total": 10**6 * (i + 1)}}
        )
        for i, (sync, stale) in enumerate(syncs)
    ]
    [section] = [each for each in document(runs)["sections"] if each["id"] == "traded"]
    drawn_of = {figure["x"]["name"]: figure for figure in section["figures"]}
    points = {name: [p["x"] for trace in f["traces"] for p in trace["points"]] for name, f in drawn_of.items()}
    assert len(points) == 2 and [sorted(each) for each in points.values()] == [[1.0, 2.0, 3.0], [2.0, 3.0]]
    assert [each for each in document(runs[:1])["sections"] if each["id"] == "traded"] == []


def colour_of_compute(window: Browser) -> tuple[int, ...]:
    """Of the first worker's bar, as it is on the screen."""
    import io

    from PIL import Image

    x, y = window.run(  # once the picture is drawn, and what loads above it has stopped moving it
        "const image = document.querySelector('#step-workers img');"
        "const frame = () => new Promise((next) => requestAnimationFrame(next));"
        "const place = () => { const box = image.getBoundingClientRect();"
        "  return [box.x + scrollX, box.y + scrollY, box.width]; };"
        "await image.decode();"
        "let before, now = place();"
        "do { before = now; await frame(); await frame(); now = place(); } while (`${before}` !== `${now}`);"
        "const scale = now[2] / image.naturalWidth;"
        f"return [now[0] + {steps.LEFT + 20} * scale, now[1] + {steps.TOP + 8} * scale]"
    )
    clip = {"x": x, "y": y, "width": 3, "height": 3, "scale": 1}
    shot = window.devtools("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    colour = Image.open(io.BytesIO(b64decode(shot["data"]))).convert("RGB").getpixel((1, 1))
    assert isinstance(colour, tuple)
    return colour


@pytest.mark.browser
def test_pictures_follow_the_page_into_the_dark_and_have_words(window: Browser, tmp_path: Path) -> None:
    told = recorded("mine", summary={"per_worker": [{"median": 7.0, **each} for each in ONE_SLOW]})
    write_report([told], tmp_path / "report.html")
    colours = [tuple(bytes.fromhex(each[0][1:])) for each in (LIGHT, DARK)]
    for dark in (False, True):
        window.open(tmp_path / "report.html", dark=dark)
        window.run("document.getElementById('step-workers').scrollIntoView()")
        window.wait_for("document.querySelector('#step-workers img').naturalWidth > 0")
        assert "The straggler is worker 1" in window.run("return document.querySelector('#step-workers img').alt")
        assert colour_of_compute(window) == colours[dark]
        window.run("document.getElementById('theme').click()")
        assert colour_of_compute(window) == colours[not dark]
    assert not window.complaints()


# -- attacks on inputs


def attacked(name: str, pgd: list[float], **run: Any) -> RunData:
    """A run of two samples of 2 x 2 grey pixels; white ones are said to be wrong."""
    white, black, grey = (b64encode(bytes([level] * 4)).decode() for level in (255, 0, 128))
    item = {"label": 3, "before": 3, "after": 8, "clean": black, "perturbation": grey, "changed": white}
    told = {"method": "pgd", "norm": "linf", "eps": 0.1, "steps": 7, "step_size": 0.03, "restarts": 1, "target": None}
    curve = {"eps": [0.0, 0.1], "pgd": pgd, "fgsm": None, "noise": [0.9, 0.9]}
    told |= {"samples": 2, "curve": curve, "doubts": ["it is a test"]}
    told["examples"] = {"shape": [1, 2, 2], "items": [item, item | {"after": 3}]}
    return replace(recorded(name, **run), adversarial=told)


def test_accuracy_over_eps_is_a_line_for_each_setting_and_method_of_the_mean_of_its_seeds() -> None:
    seeds = [
        attacked(f"pgd-{seed}", [0.9, accuracy], swept=Swept("sweep", 0, seed, {"sync": "bsp"}), config={"seed": seed})
        for seed, accuracy in enumerate((0.5, 0.7))
    ]
    part = pictured(seeds[0], seeds[1], attacked("plain", [0.9, 0.1], number=1), recorded("without"))["adversarial"]
    says = part["figures"][0]["says"]
    assert "pgd under PGD: 90.0% at 0, 60.0% at 0.1" in says and "plain under PGD: 90.0% at 0, 10.0% at 0.1" in says
    assert "plain under random noise: 90.0% at 0, 90.0% at 0.1" in says and "FGSM" not in says
    lines = [each.get("points") or "" for each in ET.fromstring(drawn(part)).iter(f"{SVG}polyline")]
    assert len(lines) == 4 and len({line.split()[1] for line in lines}) == 3  # noise is the same of both
    assert len(part["figures"]) == 4 and "without" not in str([each["name"] for each in part["figures"]])


def test_samples_are_shown_before_and_after_with_what_was_added_and_what_the_model_says() -> None:
    figure = pictured(attacked("mine", [0.9, 0.5]))["adversarial"]["figures"][1]
    assert "1 of the 2 shown were right and are wrong then" in figure["says"]
    assert "Gradients may be masked" in figure["says"] and "it is a test" in figure["says"]
    svg = ET.fromstring(b64decode(figure["pictures"][0]["source"].removeprefix("data:image/svg+xml;base64,")))
    images = [each.get("href") or "" for each in svg.iter(f"{SVG}image")]
    levels = [_grey(source) for source in images]
    assert levels == [0, 0, 128, 128, 255, 255]
    words = [each.text for each in svg.iter(f"{SVG}text")]
    assert "8, wrong: it is 3" in words and words.count("3, right") == 3
    assert words[0] == "mine: samples under PGD at eps 0.1 (L-inf)" and "(grey: 0)" in words
    assert "The samples that the attack deceives come first" in figure["says"]


def opened(source: str) -> Any:
    """An image, by its address in a page."""
    from PIL import Image

    return Image.open(io.BytesIO(b64decode(source.removeprefix("data:image/png;base64,"))))


def _grey(source: str) -> int:
    image = opened(source)
    assert image.size == (2, 2) and image.mode == "L"
    return image.getpixel((1, 1))


def test_a_picture_in_colours_is_what_pillow_reads() -> None:
    pixels = bytes(range(12))  # red, then green, then blue, row by row
    image = opened(png.source(pixels, 3, 2, 2))
    assert [image.getpixel(at) for at in ((0, 0), (1, 0), (0, 1), (1, 1))] == [
        (0, 4, 8),
        (1, 5, 9),
        (2, 6, 10),
        (3, 7, 11),
    ]


@pytest.mark.browser
def test_the_reports_adversarial_samples_are_images_in_a_browser(window: Browser, tmp_path: Path) -> None:
    write_report([attacked("mine", [0.9, 0.5])], tmp_path / "report.html")
    window.open(tmp_path / "report.html", width=1000, height=1400)
    window.run("document.getElementById('adversarial').scrollIntoView()")
    window.wait_for("[...document.querySelectorAll('#adversarial img')].every((each) => each.naturalWidth > 0)")
    assert window.run("return document.querySelectorAll('#adversarial img').length") == 2
    box = window.run(
        "const image = document.querySelectorAll('#adversarial img')[1];"
        "const { x, y, width } = image.getBoundingClientRect();"
        "return [x + window.scrollX, y + window.scrollY, width, image.naturalWidth];"
    )
    window.screenshot(tmp_path / "page.png", whole=True)
    shot = b64encode((tmp_path / "page.png").read_bytes()).decode()
    page = opened(f"data:image/png;base64,{shot}").convert("L")
    scale = box[2] / box[3]

    def level(x: float, y: float) -> int:
        return int(page.getpixel((int(box[0] + x * scale), int(box[1] + y * scale))))

    side = 112
    rows = [44 + side / 2 + i * (side + 26) for i in range(3)]
    assert [level(76 + side / 2, y) for y in rows] == [0, 128, 255]
    assert "Adversarial examples" in window.run("return document.getElementById('contents').textContent")
    assert not window.complaints()
