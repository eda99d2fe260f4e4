"""The pictures for papers: which files there are, and what is on them."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from some_runs import failed, many, recorded

from paceline.tracking.errors import StorageError
from paceline.tracking.figures.palette import LIGHT, look
from paceline.tracking.pictures import write_pictures
from paceline.tracking.report.document import document
from paceline.tracking.run_data import RunData, Swept

NAMES = ["accuracy-time", "accuracy-epochs", "accuracy-bytes", "throughput", "step-time", "memory", "bytes"]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """What would be written, by the title of its horizontal axis; laid out, but not rendered."""
    seen: dict[str, Figure] = {}

    def savefig(self: Figure, file: Any, format: str, dpi: int, metadata: dict[str, Any]) -> None:
        if format == "png":
            self.draw_without_rendering()
        seen[self.axes[0].get_xlabel()] = self

    monkeypatch.setattr(Figure, "savefig", savefig)
    return seen


@pytest.mark.slow
def test_each_picture_is_a_png_and_a_pdf_and_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    runs = [*many(3), failed()]
    one, two = (write_pictures(runs, tmp_path / name) for name in ("one", "two/deep"))
    assert [file.name for file in one] == [
        f"{name}{suffix}" for name in [*NAMES, "staleness"] for suffix in (".png", ".pdf")
    ]
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in two]
    assert one[0].read_bytes().startswith(b"\x89PNG")
    assert one[1].read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_modelled_runs_have_pictures_of_their_own_that_say_so(tmp_path: Path, figures: dict[str, Figure]) -> None:
    files = write_pictures([recorded("real"), recorded("virtual", modelled=True)], tmp_path)
    assert len(files) == 28
    assert {file.name for file in files[14:]} == {f"modelled-{file.name}" for file in files[:14]}
    figure = figures["samples/s of all workers"]  # the last one drawn: of the modelled ones
    assert figure.get_suptitle() == "Modelled (virtual cluster)"
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["virtual (modelled)"]


def test_what_no_run_knows_has_no_picture(tmp_path: Path) -> None:
    assert write_pictures([failed()], tmp_path) == []


def test_any_name_is_shown_as_it_is(tmp_path: Path, figures: dict[str, Figure]) -> None:
    names = ["_hidden", "$x^2$ and $", "<b>", "模型", "a\x00\n\u202e", "other"]
    write_pictures([recorded(name, number=i) for i, name in enumerate(names)], tmp_path)
    legend = figures["epochs"].axes[0].get_legend()
    assert legend is not None
    seen = [text.get_text() for text in legend.get_texts()]
    bars = [label.get_text() for label in figures["median step, ms"].axes[0].get_yticklabels()]
    assert seen == bars == [*names[:4], "a\\u0000\\u000a\\u202e", "other"]
    assert not any(text.get_parse_math() for text in legend.get_texts())


@pytest.mark.slow
def test_lines_have_the_reports_colours_also_when_some_runs_have_none(
    tmp_path: Path, figures: dict[str, Figure]
) -> None:
    write_pictures([failed(), *many(9)], tmp_path)
    lines = figures["training time, s"].axes[0].get_lines()
    assert [line.get_color() for line in lines] == [LIGHT[look(i).colour] for i in range(1, 10)]
    assert lines[0].get_linestyle() != lines[-1].get_linestyle()


@pytest.mark.slow
def test_seeds_of_one_setting_look_alike_as_in_the_report(tmp_path: Path, figures: dict[str, Figure]) -> None:
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
    write_pictures(runs, tmp_path)
    lines = figures["training time, s"].axes[0].get_lines()
    reported = [run["look"] for run in document(runs)["runs"]]
    assert [line.get_color() for line in lines] == [LIGHT[colour] for colour, _, _ in reported]
    assert [line.get_color() for line in lines] == 3 * [LIGHT[0]] + 3 * [LIGHT[1]]


def test_the_bars_of_a_step_add_up_to_it(tmp_path: Path, figures: dict[str, Figure]) -> None:
    runs = many(2)
    write_pictures(runs, tmp_path)
    axes = figures["median step, ms"].axes[0]
    ends = [max(bar.get_x() + bar.get_width() for bar in bars) for bars in zip(*axes.containers, strict=True)]
    assert ends == pytest.approx([1e3 * run.summary["step_time"]["median"] for run in runs])


@pytest.mark.slow
def test_of_very_many_runs_the_bars_are_the_first_ones_and_say_so(tmp_path: Path, figures: dict[str, Figure]) -> None:
    runs: list[RunData] = [recorded(f"run-{i}", points=6, number=i) for i in range(70)]
    write_pictures(runs, tmp_path)
    axes = figures["samples/s of all workers"].axes[0]
    assert axes.get_title(loc="left") == "the first 60 of 70 runs"
    assert len(axes.containers[0]) == 60


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write pictures to"):
        write_pictures([recorded()], tmp_path / "file")
