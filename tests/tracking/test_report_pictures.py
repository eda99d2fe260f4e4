"""The pictures for papers: which files there are, and what is on them."""

import base64
import os
import re
import struct
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

import pytest
from some_runs import failed, many, recorded, seeds_of

from paceline.tracking.display import pictures
from paceline.tracking.drawn import svg
from paceline.tracking.drawn.axes import DASHED, scale
from paceline.tracking.drawn.charts import _is_near
from paceline.tracking.drawn.converted import pdf_of, png_of
from paceline.tracking.drawn.style import PictureStyle
from paceline.tracking.errors import StorageError
from paceline.tracking.figures.palette import look
from paceline.tracking.pictures import write_pictures
from paceline.tracking.report.document import document
from paceline.tracking.run_data import RunData, Swept

NAMES = ["accuracy-time", "accuracy-epochs", "accuracy-bytes", "throughput", "step-time", "memory", "bytes"]
SVG = "{http://www.w3.org/2000/svg}"


def drawn(runs: list[RunData], name: str) -> ET.Element:
    return ET.fromstring(pictures(runs)[name]())


def of_class(picture: ET.Element, name: str) -> list[ET.Element]:
    return [each for each in picture.iter() if name in (each.get("class") or "").split()]


def texts(picture: ET.Element, name: str) -> list[str]:
    return [each.text or "" for each in of_class(picture, name)]


@pytest.mark.slow
def test_each_picture_is_an_svg_a_png_and_a_pdf_and_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    runs = [*many(3), failed()]
    one, two = (write_pictures(runs, tmp_path / name) for name in ("one", "two/deep"))
    assert [file.name for file in one] == [
        f"{name}{suffix}" for name in [*NAMES, "staleness"] for suffix in (".svg", ".png", ".pdf")
    ]
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in two]
    assert one[0].read_bytes().startswith(b"<svg")
    assert one[1].read_bytes().startswith(b"\x89PNG")
    assert one[2].read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_a_pdf_embeds_its_only_font_and_clips_the_lines_of_each_pattern() -> None:
    drawing = pictures([recorded()])["step-time"]()
    pdf = pdf_of(drawing)
    assert re.findall(rb"/BaseFont /(\S+)", pdf) == [b"AAAAAA+BitstreamVeraSans-Roman"]
    coded = re.findall(rb"/ASCII85Decode .*?stream\r?\n(.*?)endstream", pdf, re.DOTALL)[-1]
    page = zlib.decompress(base64.a85decode(coded.strip().removesuffix(b"~>")))
    assert len(re.findall(rb"\bW\*? n\b", page)) == drawing.count("url(#") > 0


def test_the_letters_of_a_png_need_no_font_of_the_system() -> None:
    with_words, without = (svg.document("a", "b", 40, 20, parts) for parts in ([svg.text(5, 15, "word")], []))
    assert png_of(with_words) != png_of(without)


def test_modelled_runs_have_pictures_of_their_own_that_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("png_of", "pdf_of"):
        monkeypatch.setattr(f"paceline.tracking.pictures.{name}", lambda *_: b"")
    runs = [recorded("real"), recorded("virtual", modelled=True)]
    files = write_pictures(runs, tmp_path)
    assert len(files) == 42
    assert {file.name for file in files[21:]} == {f"modelled-{file.name}" for file in files[:21]}
    picture = ET.parse(tmp_path / "modelled-throughput.svg").getroot()
    assert "Modelled (virtual cluster)" in texts(picture, "small")
    assert texts(picture, "named") == ["virtual (modelled)"]


def sides(picture: str) -> tuple[float, float]:
    root = ET.fromstring(picture)
    return float(root.attrib["width"]), float(root.attrib["height"])


@pytest.mark.parametrize(
    ("size", "points"), [("5x3.5in", None), ("120x80mm", "8"), ("30x20cm", "14"), ("2x1.5in", "9")]
)
@pytest.mark.slow  # pictures of several sizes
def test_a_picture_has_the_size_the_title_and_the_letters_that_are_asked_for(
    size: str, points: str | None, tmp_path: Path
) -> None:
    style = PictureStyle.parse(size, "A & B", points)
    assert style.width is not None and style.height is not None
    files = write_pictures([recorded("a"), recorded("b")], tmp_path, style=style)
    assert files
    for file in files:
        if file.suffix == ".svg":
            picture = file.read_text()
            assert sides(picture) == pytest.approx((style.width, style.height), rel=1e-4)
            root = ET.fromstring(picture)
            assert texts(root, "title") == ["A & B"]
            _, _, wide, high = map(float, root.attrib["viewBox"].split())
            scale = style.width / wide
            if size != "2x1.5in":  # where there is room, the letters have their size, and nothing is empty
                assert 13 * scale * 72 / 96 == pytest.approx(float(points or 9.75), rel=0.01), file.name
                assert high * scale == pytest.approx(style.height, rel=0.01)
        if file.suffix == ".png":
            wide, high = struct.unpack(">II", file.read_bytes()[16:24])
            assert wide == pytest.approx(style.width * 200 / 96, abs=2) and high == pytest.approx(
                style.height * 200 / 96, abs=2
            )


@pytest.mark.slow
def test_a_font_of_a_file_is_that_of_every_format(tmp_path: Path) -> None:
    fonts = Path(pytest.importorskip("matplotlib").get_data_path()) / "fonts" / "ttf"
    style = PictureStyle.parse(None, None, f"{fonts / 'DejaVuSerif.ttf'},9")
    assert (style.family, style.points) == ("DejaVu Serif", 9)
    own = write_pictures([recorded("a")], tmp_path / "own", style=style)
    usual = write_pictures([recorded("a")], tmp_path / "usual")
    assert all(one.read_bytes() != other.read_bytes() for one, other in zip(own, usual, strict=True))
    assert style.family in own[0].read_text()
    (pdf,) = (file for file in own if file.name == "throughput.pdf")
    assert b"BitstreamVera" not in pdf.read_bytes()


def test_a_target_far_from_the_curves_is_named_and_leaves_them_the_axis() -> None:
    assert _is_near(0.9, [0.82, 0.91]) and _is_near(92.0, [82.0, 91.0])
    assert not _is_near(98.0, [82.0, 86.0]) and not _is_near(50.0, [82.0, 86.0])
    assert _is_near(90.0, [82.0]) and _is_near(90.0, [])
    runs = [recorded(name, summary={"target_accuracy": 5.0}) for name in "ab"]
    picture = drawn(runs, "accuracy-time")
    assert any("Target: 500, beyond the axis" in text for text in texts(picture, "small"))
    assert not of_class(picture, "target")


def test_what_no_run_knows_has_no_picture(tmp_path: Path) -> None:
    assert write_pictures([failed()], tmp_path) == []


def test_any_name_is_shown_as_it_is() -> None:
    names = ["_hidden", "$x^2$ and $", "<b>", "模型", "a\x00\n\u202e", "other"]
    runs = [recorded(name, number=i) for i, name in enumerate(names)]
    shown = [*names[:4], "a\\u0000\\u000a\\u202e", "other"]
    for name in ("accuracy-epochs", "throughput"):
        assert sorted(texts(drawn(runs, name), "named")) == sorted(shown)


def test_a_title_of_any_characters_is_written_out() -> None:
    style = PictureStyle.parse(None, "a\x01\udcff\nb", None)
    picture = style.draw(pictures([recorded("a")])["throughput"])
    assert texts(ET.fromstring(picture), "title") == [r"a\x01\udcff\nb"]


def test_lines_have_the_reports_colours_also_when_some_runs_have_none() -> None:
    runs = many(9)
    lines = of_class(drawn([failed(), *runs], "accuracy-time"), "curve")
    looks = [look(i) for i in range(1, 10)]
    names = [run.name for run in runs]
    lines.sort(key=lambda line: names.index(str(line[0].text)))
    assert [line.get("class") for line in lines] == [f"s{each.colour} curve" for each in looks]
    assert [line.get("stroke-dasharray") or "" for line in lines] == [DASHED[each.dash] for each in looks]
    assert lines[0].get("stroke-dasharray") != lines[-1].get("stroke-dasharray")


def test_seeds_of_one_setting_look_alike_as_in_the_report() -> None:
    runs = [
        recorded(
            f"{sync}-{seed}",
            sync=sync,
            swept=Swept("sweep", trial, seed, {"sync": sync}),
            config={"seed": seed, "sync": {"name": sync, "knobs": {}}},
        )
        for trial, sync in enumerate(("bsp", "asp"))
        for seed in range(3)
    ]
    colours = [line.get("class") for line in of_class(drawn(runs, "accuracy-time"), "curve")]
    assert colours == [f"s{run['look'][0]} curve" for run in document(runs)["runs"]]
    assert colours == 3 * ["s0 curve"] + 3 * ["s1 curve"]


def test_points_are_where_the_axes_say() -> None:
    run = recorded("one")
    picture = drawn([run], "accuracy-epochs")
    ticks = {float(each.text or 0): float(each.get("x", 0)) for each in of_class(picture, "tick")}
    (first, one), (last, other) = min(ticks.items()), max(ticks.items())
    places = [float((mark.get("transform") or "")[10:].partition(",")[0]) for mark in of_class(picture, "mark")]
    epochs = [first + (place - one) / (other - one) * (last - first) for place in places]
    wanted = [record["epoch"] for record in run.records if record["kind"] == "evaluation"]
    assert epochs == pytest.approx(wanted, abs=0.02)


@pytest.mark.parametrize(
    ("values", "unit", "log", "texts"),
    [
        ([0.0, 97.0], "", False, ["0", "20", "40", "60", "80", "100"]),
        ([0.0, 3e6], "bytes", False, ["0 B", "1 MiB", "2 MiB", "3 MiB"]),
        ([3.0, 40.0], "", True, ["5", "10", "20"]),
        ([1e-3, 1e5], "", True, ["0.001", "0.01", "0.1", "1", "10", "100", "1,000", "10,000", "100,000"]),
        ([1024.0, 65536.0], "bytes", True, ["1 KiB", "4 KiB", "16 KiB", "64 KiB"]),
        ([5.0, 5.0], "", False, ["3", "4", "5", "6", "7"]),
        ([], "", False, ["0.6", "0.8", "1", "1.2", "1.4"]),
    ],
)
def test_ticks_are_round_numbers(values: list[float], unit: str, log: bool, texts: list[str]) -> None:
    assert [words for _, words in scale(values, 0, 100, unit, log).ticks] == texts


def test_the_bars_of_a_step_add_up_to_it() -> None:
    runs = many(2)
    picture = drawn(runs, "step-time")
    bars = [
        bar
        for bar in picture.iter(f"{SVG}rect")
        if "fill-opacity" not in bar.attrib and bar.find(f"{SVG}title") is not None
    ]
    ends: dict[str, float] = {}
    for bar in bars[:-3]:  # the last three are the legend's
        y = bar.get("y", "")
        ends[y] = max(ends.get(y, 0.0), float(bar.get("x", 0)) + float(bar.get("width", 0)))
    left = min(float(bar.get("x", 0)) for bar in bars[:-3])
    lengths = [end - left for end in ends.values()]
    medians = [run.summary["step_time"]["median"] for run in runs]
    assert lengths[1] / lengths[0] == pytest.approx(medians[1] / medians[0], rel=1e-3)


def test_of_very_many_runs_the_bars_are_the_first_ones_and_say_so() -> None:
    picture = drawn([recorded(f"run-{i}", points=6, number=i) for i in range(70)], "throughput")
    assert "the first 60 of 70 runs" in texts(picture, "small")
    assert texts(picture, "named") == [f"run-{i}" for i in range(60)]


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write pictures to"):
        write_pictures([recorded()], tmp_path / "file")


def test_a_full_disk_leaves_no_half_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="svg: No space left on device"):
        write_pictures([recorded("a")], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_of_many_settings_the_first_two_of_the_ranking_stand_out() -> None:
    runs = [run for i in range(6) for run in seeds_of(i, f"mode{i}", 2)]
    for place, run in enumerate(runs):
        run.summary["time_to_accuracy"] = 20.0 - place
    runs[-1].summary["time_to_accuracy"] = 30.0  # so that the mean of its seeds is not among the first
    picture = drawn(runs, "accuracy-time")
    titles = [(each[0].text, each.get("stroke-opacity")) for each in of_class(picture, "curve")]
    clear = [title for title, opacity in titles if opacity is None]
    pair = {"0003-mode3-s0", "0003-mode3-s1", "0004-mode4-s0", "0004-mode4-s1"}
    assert set(clear) == pair == set(texts(picture, "named")[:4])
    assert [title for title, _ in titles[-4:]] == clear, "they are drawn last"
    assert {opacity for _, opacity in titles[:-4]} == {"0.35"} and len(titles) == 12
    assert "8 pale: not of the first two settings of the ranking" in texts(picture, "small")
    points = [len((each.get("d") or "").split()) for each in of_class(picture, "curve")]
    assert len(of_class(picture, "mark")) == sum(points[-4:]), "pale curves have no markers"

    few = drawn(runs[:10], "accuracy-time")
    assert {each.get("stroke-opacity") for each in of_class(few, "curve")} == {None}
    many_runs = drawn([run for i in range(9) for run in seeds_of(i, f"mode{i}", 3)], "accuracy-time")
    assert len(texts(many_runs, "named")) == 6, "of many curves, the legend names those that stand out"
