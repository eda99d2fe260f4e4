"""The report in a real browser: what it shows, and what it does when it is used."""

import json
from pathlib import Path

import pytest
from axe import violations
from browser import Browser
from needs import needs_axe, needs_chromium
from report_page import DRAW_ALL, NAMES, show
from some_runs import failed, many, recorded, seeds_of

from paceline.tracking.compare import ComparisonRequest as Table
from paceline.tracking.compare import table
from paceline.tracking.figures.request import FigureRequest
from paceline.tracking.groups import mean
from paceline.tracking.report import write_report
from paceline.tracking.run_data import RunData, Swept

pytestmark = [pytest.mark.browser, needs_chromium]


def few_runs() -> list[RunData]:
    """Measured and modelled ones, stale ones, a failed, a pruned and a diverged one, two that belong to a sweep."""
    return [
        recorded("bsp-1", number=1, swept=Swept("sweep", 0, 0, {"sync": "bsp", "optimizer.lr": 0.1, "batch_size": 32})),
        recorded(
            "asp-2",
            number=5,
            sync="asp",
            swept=Swept("sweep", 1, 0, {"sync": "asp", "optimizer.lr": 0.01, "batch_size": 64}),
        ),
        recorded("virtual-3", number=2, modelled=True),
        failed("failed-4", "worker 1 ended: no space left", swept=Swept("sweep", 2, 0, {"sync": "ssp"})),
        recorded("diverged-5", number=3, points=20, epochs=1, status="diverged"),
        recorded("pruned-6", number=4, points=20, epochs=2, status="pruned"),
    ]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "few.html"
    write_report(few_runs(), file)
    return file


@pytest.fixture
def few(window: Browser, file: Path) -> Browser:
    """A few runs, to use as one likes."""
    window.open(file)
    return window


@pytest.fixture
def drawn(window: Browser, file: Path) -> Browser:
    """A few runs with every plot drawn, to look at only: it is opened once for tests that follow each other."""
    if not window.run("return window.isDrawn === true"):
        window.open(file)
        window.run(DRAW_ALL + "window.isDrawn = true;")
    return window


LINE = (
    "return [...document.querySelectorAll('#table tbody tr')].find((l) => l.innerText.includes(arguments[0])).innerText"
)


def traces(window: Browser, section: str) -> list[list[str]]:
    """The names of the lines in each of a section's plots."""
    return window.run(
        f"return [...document.querySelectorAll('#{section} .plot')]"
        ".map((plot) => (plot.data || []).map((line) => line.name))"
    )


def test_all_sections_are_there_and_nothing_is_fetched_or_complained_of(drawn: Browser) -> None:
    titles = drawn.run(
        "return [...document.querySelectorAll('main h2')].filter((h) => h.offsetParent).map((h) => h.textContent)"
    )
    assert titles == [
        "Time to the target",
        "Ranking",
        "Runs",
        "Accuracy",
        "Loss",
        "Where a step's time goes",
        "Memory by kind",
        "Bytes sent: predicted and measured",
        "Staleness",
        "What was swept",
        "Memory over a step",
        "Difference between two runs",
        "Configurations",
    ]
    assert drawn.run("return document.querySelectorAll('figure .plot-container').length") >= 10
    assert drawn.run("return document.documentElement.scrollWidth") <= 1280
    assert drawn.complaints() == []
    assert drawn.requests() == []


def test_the_sentence_says_who_is_soonest(drawn: Browser) -> None:
    said = drawn.run("return [...document.querySelectorAll('#verdicts li')].map((item) => item.textContent)")
    assert said[0].startswith(
        "Measured, mlp on digits, target 90.00%. One seed each: not a ranking. 2 settings reached it"
    )
    assert said[1].startswith("Modelled (virtual cluster)")
    counts = drawn.run("return document.getElementById('counts').textContent")
    assert counts.startswith("6 runs: 3 completed, 1 failed, 1 diverged, 1 pruned, 1 modelled")


def test_runs_that_did_not_complete_are_in_the_table_with_status_and_reason(drawn: Browser) -> None:
    line = drawn.run(LINE, "failed-4")
    assert "failed-4" in line
    assert "failed" in line.split("failed-4")[1]
    assert "no space left" in line
    assert drawn.run("return document.querySelectorAll('#table tbody td.bad').length") == 3


def test_modelled_runs_have_plots_of_their_own_and_are_labelled(drawn: Browser) -> None:
    plots = drawn.run(
        "return [...document.querySelectorAll('figure')].map((f) => [f.previousElementSibling.textContent,"
        " JSON.stringify([(f.querySelector('.plot').data || []).map((d) => [d.name, d.customdata]),"
        " (f.querySelector('.plot').layout || {}).yaxis])])"
    )
    assert {title for title, _ in plots} == {"Measured", "Modelled (virtual cluster)"}
    for title, told in plots:
        if title == "Measured":
            assert "virtual-3" not in told
        else:
            assert "bsp-1" not in told
            assert told.count("virtual-3") == told.count("virtual-3 (modelled)")
    assert "modelled" in drawn.run(LINE, "virtual-3")


def test_failed_runs_have_no_line_in_the_sweep_and_are_counted(drawn: Browser) -> None:
    assert [name for name in traces(drawn, "sweep")[0] if name] == ["bsp-1", "asp-2"]
    assert "1 run without a line: 1 failed" in drawn.run(
        "return document.querySelector('#sweep figcaption').textContent"
    )


def test_each_plot_has_a_name_and_a_summary(drawn: Browser) -> None:
    for label, caption in drawn.run(
        "return [...document.querySelectorAll('figure')].map((f) =>"
        " [f.querySelector('.plot').getAttribute('aria-label'), f.querySelector('figcaption').textContent])"
    ):
        assert label.lower().endswith(caption.lower())
        assert len(caption) > 10


def test_a_head_sorts_by_click_and_by_keyboard_and_says_so(few: Browser) -> None:
    head = "[...document.querySelectorAll('#table th')].find((h) => h.textContent === 'samples/s')"
    few.run(f"{head}.querySelector('button').click()")
    assert few.run(f"return {head}.getAttribute('aria-sort')") == "descending"
    falling = few.run(NAMES)
    assert falling[:5] == ["bsp-1", "virtual-3", "diverged-5", "pruned-6", "asp-2"]
    few.run(f"{head}.querySelector('button').focus()")
    few.press("enter")
    assert few.run(f"return {head}.getAttribute('aria-sort')") == "ascending"
    assert few.run(NAMES) == [*falling[:5][::-1], "failed-4"], "what is unknown stays last"
    show(few, "step")
    bars = few.run("return document.querySelector('#step .plot').layout.yaxis.ticktext")
    assert bars == ["asp-2", "pruned-6 (pruned)", "diverged-5 (diverged)", "bsp-1"]


def test_the_filter_hides_lines_and_counts_them(few: Browser) -> None:
    few.run("document.getElementById('filter').focus()")
    few.press(*"no space")
    assert few.run(NAMES) == ["failed-4"]
    assert few.run("return document.getElementById('found').textContent") == "1 of 6 runs"


def test_a_run_that_is_unticked_leaves_all_plots(few: Browser) -> None:
    show(few, "accuracy")
    assert traces(few, "accuracy")[0] == ["bsp-1", "asp-2", "diverged-5 (diverged)", "pruned-6 (pruned)"]
    few.run("document.querySelector(arguments[0]).focus()", "#table input[aria-label='plot bsp-1']")
    few.press("space")
    few.run(DRAW_ALL)
    assert "bsp-1" not in json.dumps(traces(few, "accuracy"))
    told = few.run(
        "return [...document.querySelectorAll('.plot')].map((p) => JSON.stringify([p.data, p.layout])).join()"
    )
    assert "asp-2" in told
    assert "bsp-1" not in told
    few.run("const box = document.getElementById('filter'); box.value = 'asp'; box.dispatchEvent(new Event('input'))")
    few.run("document.getElementById('only').click()")
    show(few, "accuracy")
    assert traces(few, "accuracy")[0] == ["asp-2"]


def test_the_axis_is_chosen_and_the_points_are_the_runs(few: Browser) -> None:
    show(few, "accuracy")
    options = few.run("return [...document.getElementById('accuracy-x').options].map((option) => option.value)")
    assert options == ["time", "epoch", "bytes", "step"]
    evaluations = [r for r in few_runs()[0].records if r["kind"] == "evaluation"]
    expected = {
        "time": [r["time"] for r in evaluations],
        "epoch": [r["epoch"] for r in evaluations],
        "bytes": [r["step"] * 2 * 2000 for r in evaluations],
    }
    for axis, points in expected.items():
        few.run(
            f"const x = document.getElementById('accuracy-x'); x.value = '{axis}'; x.dispatchEvent(new Event('change'))"
        )
        x, y = few.run(
            "const [line] = document.querySelector('#accuracy .plot').data; return [[...line.x], [...line.y]]"
        )
        assert x[:-1] == pytest.approx(points, rel=1e-5)
        assert y[:-1] == pytest.approx([r["accuracy"] for r in evaluations], rel=1e-5)


def test_configurations_are_folded_and_two_can_be_compared(few: Browser) -> None:
    assert few.run("return document.querySelectorAll('#folded details:not([open])').length") == 6
    few.run("document.querySelector('#folded details').open = true")
    few.wait_for("document.querySelector('#folded table')")
    assert "optimizer.knobs.lr" in few.run("return document.querySelector('#folded table').textContent")
    cells = few.run(
        "return [...document.querySelectorAll('#differences tbody tr')]"
        ".map((r) => [...r.children].map((c) => c.textContent))"
    )
    assert cells == [["optimizer.knobs.lr", "1.02", "5.02"]]
    few.run("const s = document.getElementById('other'); s.value = '3'; s.dispatchEvent(new Event('change'))")
    said = few.run("return document.getElementById('differs').textContent")
    assert said == "not known: the configuration of failed-4"


def test_plots_are_drawn_only_when_they_come_into_sight(few: Browser) -> None:
    drawn = "return document.querySelectorAll('.plot .plot-container').length"
    few.wait_for("document.querySelector('#accuracy figure')")
    before = few.run(drawn)
    show(few, "sweep")
    assert before < few.run(drawn) < few.run("return document.querySelectorAll('figure').length")


FOCUS = """
const e = document.activeElement;
const style = getComputedStyle(e);
const what = e.tagName + '|' + (e.id || e.textContent.slice(0, 30) || e.getAttribute('aria-label'));
return [what, style.outlineStyle, e === document.body];
"""


def test_every_control_is_reached_by_tab_and_seen(few: Browser) -> None:
    controls = few.run(
        "return [...document.querySelectorAll('a[href], button, select, input, summary')].filter((e) => e.offsetParent)"
        ".map((e) => e.tagName + '|' + (e.id || e.textContent.slice(0, 30) || e.getAttribute('aria-label')))"
    )
    reached = []
    for _ in range(len(controls) + 30):
        few.press("tab")
        what, outline, at_end = few.run(FOCUS)
        if at_end and reached:
            break
        assert outline != "none", what
        reached.append(what)
    assert set(controls) <= set(reached)


CONTRAST = r"""
const linear = (p) => (p <= 0.04045 ? p / 12.92 : ((p + 0.055) / 1.055) ** 2.4);
const luminance = (parts) => parts.slice(0, 3).map((p) => linear(p / 255))
  .reduce((sum, p, i) => sum + p * [0.2126, 0.7152, 0.0722][i], 0);
const parse = (text) => (text.match(/[\d.]+/g) || []).map(Number);
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const found = parse(getComputedStyle(e).backgroundColor);
    if (found.length === 3 || found[3] === 1) return found;
  }
  return [255, 255, 255];
};
const low = []; let seen = 0;
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !e.getClientRects().length || e.closest('script, style, noscript')) continue;
  const style = getComputedStyle(e);
  const colour = parse(e.closest('svg') ? style.fill : style.color);
  const [a, b] = [luminance(colour), luminance(behind(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  seen += 1;
  if (ratio < 4.5) low.push([e.tagName, e.textContent.slice(0, 20), ratio]);
}
return [seen, low];
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_stands_out_of_its_ground(window: Browser, file: Path, dark: bool) -> None:
    window.open(file, dark=dark)
    window.run(DRAW_ALL)
    seen, low = window.run(CONTRAST)
    assert seen > 200
    assert low == []


def test_the_page_follows_the_system_until_the_switch_is_used_and_plots_follow(few: Browser) -> None:
    show(few, "accuracy")
    colour = "return document.querySelector('#accuracy .plot').layout.font.color"
    page = "return getComputedStyle(document.body).backgroundColor"
    light = few.run(colour), few.run(page)
    few.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    few.wait_for("document.documentElement.dataset.theme === 'dark'")
    dark = few.run(colour), few.run(page)
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    few.run("document.getElementById('theme').click()")
    assert (few.run(colour), few.run(page)) == light


def test_a_plot_is_saved_as_a_picture(few: Browser, tmp_path: Path) -> None:
    few.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    show(few, "accuracy")
    few.run(
        "const clicked = new Promise((next) => document.addEventListener('click', (event) => {"
        " if (event.target.download) next(event.target.download); }, true));"
        "[...document.querySelectorAll('#accuracy button')].find((b) => b.textContent === 'Save picture').click();"
        "window.saved = await Promise.race([clicked, new Promise((next) => setTimeout(next, 20000))])"
    )
    assert few.run("return window.saved") == "paceline-accuracy-measured.png"
    assert few.complaints() == []


def test_zooming_is_undone_by_a_button(few: Browser) -> None:
    show(few, "accuracy")
    limits = "return [...document.querySelector('#accuracy .plot').layout.xaxis.range]"
    before = few.run(limits)
    few.run("await Plotly.relayout(document.querySelector('#accuracy .plot'), { 'xaxis.range': [0.1, 0.2] })")
    assert few.run(limits) == [0.1, 0.2]
    few.run("[...document.querySelectorAll('#accuracy button')].find((b) => b.textContent === 'Reset zoom').click()")
    assert few.run(limits) == before


def test_the_page_is_no_wider_than_a_telephone(window: Browser, file: Path) -> None:
    window.open(file, width=400)
    window.run(DRAW_ALL)
    assert window.run("return document.documentElement.scrollWidth") <= 400


@pytest.mark.slow
def test_500_runs_of_1000_points_are_shown_in_few_lines_and_all_listed(window: Browser, tmp_path: Path) -> None:
    write_report(many(500, 1000, 50), tmp_path / "many.html")
    window.open(tmp_path / "many.html")
    assert len(window.run(NAMES)) == 500
    window.run(DRAW_ALL)
    for section in ("accuracy", "loss"):
        lines = window.run(
            f"return document.querySelector('#{section} .plot').data.map((line) => [line.x.length, line.customdata])"
        )
        assert len(lines) <= 48
        assert sum(count for count, _ in lines) < 160_000
        assert len({name for _, names in lines for name in names} - {""}) == 500
    assert window.complaints() == []


def test_seeds_are_drawn_as_a_mean_with_its_interval_and_can_be_taken_apart(window: Browser, tmp_path: Path) -> None:
    runs = [*seeds_of(0, "bsp", 3), *seeds_of(1, "asp", 3), recorded("alone", number=2)]
    cut = seeds_of(2, "ssp", 2)
    cut[1].summary["status"] = "failed"
    write_report([*runs, *cut], tmp_path / "seeds.html")
    window.open(tmp_path / "seeds.html")
    show(window, "accuracy")
    window.run(
        "const x = document.getElementById('accuracy-x'); x.value = 'step'; x.dispatchEvent(new Event('change'));"
    )
    [names] = traces(window, "accuracy")
    means = [name for name in names if "mean of 3 seeds" in name]
    assert len(means) == 2 and names.count("interval") == 2 and len(names) == 2 * 2 + 3
    lines = window.run("return document.querySelector('#accuracy .plot').data.map((l) => [l.name, l.y, l.customdata])")
    of_bsp = next(line for line in lines if line[0] == means[0])
    every = [[r["accuracy"] for r in run.records if r["kind"] == "evaluation"] for run in runs[:3]]
    expected = [mean(values) for values in zip(*every, strict=True)]
    assert of_bsp[1] == pytest.approx([centre for centre, _ in expected], rel=1e-5)
    assert of_bsp[2] == pytest.approx([half for _, half in expected], rel=1e-3)
    legend = window.run("return document.querySelector('#accuracy .legend').textContent")
    assert "mean of 3 seeds" in legend and "0002-ssp-s1 (failed)" in legend
    window.run("[...document.querySelectorAll('#accuracy .controls input')].at(-1).click()")
    assert len(traces(window, "accuracy")[0]) == len(runs) + len(cut)


def test_without_seeds_there_is_no_switch_for_them(few: Browser) -> None:
    assert "seeds together" not in few.run("return document.querySelector('#accuracy .controls').textContent")


def test_seeds_without_a_common_time_are_drawn_one_by_one_and_it_is_said(window: Browser, tmp_path: Path) -> None:
    early, late = seeds_of(0, "bsp", 2)
    for record in late.records:
        if "time" in record:
            record["time"] += 1000.0
    write_report([early, late], tmp_path / "apart.html")
    window.open(tmp_path / "apart.html")
    show(window, "accuracy")
    assert traces(window, "accuracy") == [[early.name, late.name]]
    caption = window.run("return document.querySelector('#accuracy figcaption').textContent")
    assert "Seeds that have no time in common are drawn one by one (2 runs)." in caption


@pytest.mark.parametrize("seeds", [1, 3])
def test_many_curves_of_one_evaluation_are_seen_as_points(seeds: int, window: Browser, tmp_path: Path) -> None:
    runs = [
        recorded(
            f"{sync}-{seed}",
            number=7 * number + seed,
            epochs=1,
            sync=sync,
            swept=Swept("mine", number, seed, {"sync": sync}),
        )
        for number, sync in enumerate(
            ("bsp", "asp", "ssp", "easgd", "gossip", "diloco", "fedavg") * (3 if seeds == 1 else 1)
        )
        for seed in range(seeds)
    ]
    write_report(runs, tmp_path / "points.html")
    window.open(tmp_path / "points.html")
    show(window, "accuracy")
    modes = window.run("return document.querySelector('#accuracy .js-plotly-plot').data.map((trace) => trace.mode)")
    assert modes and {*modes} == {"lines+markers"}


def test_the_means_of_seeds_are_shown_as_in_the_terminal(window: Browser, tmp_path: Path) -> None:
    runs = [*seeds_of(0, "bsp", 3), *seeds_of(1, "asp", 3)]
    rows, _ = table(runs, Table(pareto=("accuracy", "bytes")))
    write_report(runs, tmp_path / "means.html", rows)
    window.open(tmp_path / "means.html")
    of_line = "(line) => [...line.children].map((cell) => cell.textContent)"
    lines = window.run(f"return [...document.querySelectorAll('#comparison tr')].map({of_line})")
    assert lines[0][0] == "run" and [line[0] for line in lines[1:]] == ["0000-bsp", "0001-asp"]
    expected = mean([run.summary["accuracy"] for run in runs[:3]])
    assert f"{expected[0]:.2%}" in lines[1][lines[0].index("accuracy")] and "±" in lines[1][lines[0].index("accuracy")]
    write_report(runs[:1], tmp_path / "one.html")
    window.open(tmp_path / "one.html")
    assert window.run("return document.getElementById('compared').hidden")


def ticked(window: Browser, section: str, title: str) -> bool:
    """Clicks the box of that title; whether it was ticked before."""
    return window.run(
        "const found = [...document.querySelectorAll(`#${arguments[0]} .controls label`)]"
        ".find((label) => label.textContent === arguments[1]).querySelector('input');"
        "const was = found.checked; found.click(); return was",
        section,
        title,
    )


PLOT = "const plot = document.querySelector(`#${arguments[0]} .plot`);"


def test_settings_are_ranked_by_the_time_to_the_target_with_intervals(window: Browser, tmp_path: Path) -> None:
    runs = [*seeds_of(0, "bsp", 3), *seeds_of(1, "asp", 3), *seeds_of(2, "ssp", 3)]
    for run, time in zip(runs, [4.0, 5.0, 6.0, 1.0, 1.1, 1.2, 0.1, None, 0.2], strict=True):
        run.summary["time_to_accuracy"] = time
    write_report(runs, tmp_path / "ranked.html")
    window.open(tmp_path / "ranked.html")
    show(window, "ranking")
    names, means, halves = window.run(
        PLOT + "return [plot.layout.yaxis.ticktext, [...plot.data[0].x], [...plot.data[0].error_x.array]]", "ranking"
    )
    assert names == ["0001-asp (mean of 3 seeds)", "0000-bsp (mean of 3 seeds)"]
    expected = [mean([1.0, 1.1, 1.2]), mean([4.0, 5.0, 6.0])]
    assert means == pytest.approx([centre for centre, _ in expected])
    assert halves == pytest.approx([half for _, half in expected])
    caption = "return document.querySelector('#ranking figcaption').textContent"
    assert "as only 2 of 3 seeds have it: 0002-ssp" in window.run(caption)
    assert window.run("return document.querySelector('#sweep') === null"), "no number is swept"


def test_an_interval_ends_where_values_do(window: Browser, tmp_path: Path) -> None:
    runs = [*seeds_of(0, "bsp", 2), *seeds_of(1, "asp", 2)]
    for run, accuracy in zip(runs, [0.7, 0.99, 0.1, 0.8], strict=True):
        run.summary.update(time_to_accuracy=None, accuracy=accuracy)
    write_report(runs, tmp_path / "bounded.html")
    window.open(tmp_path / "bounded.html", width=390)
    show(window, "ranking")
    drawn = "const { x, error_x } = plot.data[0], { xaxis, yaxis } = plot.layout; return [x.map((one, i) => ["
    drawn += "one + error_x.array[i], one - error_x.arrayminus[i]]), xaxis.tickvals, yaxis.ticktext]"
    ends, ticks, names = window.run(PLOT + drawn, "ranking")
    assert ends == [pytest.approx([1, 0]), pytest.approx([1, 0])] and ticks == [0, 0.5, 1]
    assert names == ["0000-bsp", "0001-asp"], "a telephone has no room for more"
    show(window, "loss")
    bands = "return plot.data.filter((one) => one.name === 'interval').map((one) => Math.min(...one.y))"
    assert min(window.run(PLOT + bands, "loss")) >= 0


def test_no_two_bars_of_a_ranking_look_alike(window: Browser, tmp_path: Path) -> None:
    write_report([recorded(f"run-{i}", number=i, sync=f"mode-{i}") for i in range(20)], tmp_path / "many.html")
    window.open(tmp_path / "many.html")
    show(window, "ranking")
    marker = "const { color, pattern } = plot.data[0].marker; "
    looks = window.run(PLOT + marker + "return color.map((one, i) => `${one} ${pattern.shape[i]}`)", "ranking")
    assert len(looks) == len(set(looks)) == 20


def test_a_ranking_of_one_seed_says_that_it_is_none(few: Browser) -> None:
    show(few, "ranking")
    said = few.run("return document.querySelector('#ranking figcaption').textContent")
    assert "One seed each: not a ranking" in said
    assert few.run(PLOT + "return plot.data[0].error_x.visible", "ranking") is False


def test_one_stale_update_does_not_squash_the_staleness_of_the_others(window: Browser, tmp_path: Path) -> None:
    run = recorded("asp", sync="asp")
    run.summary["staleness"] = {"mean": 1.3, "max": 245, "histogram": {"0": 100, "1": 800, "2": 98, "245": 1}}
    write_report([run], tmp_path / "stale.html")
    window.open(tmp_path / "stale.html")
    show(window, "staleness")
    end = PLOT + "return plot.layout.xaxis.range[1]"
    assert window.run(end, "staleness") < 3
    said = window.run("return document.querySelector('#staleness figcaption').textContent")
    assert "Largest: 245, of asp. The axis ends at 2: 99 % of each run's updates are no staler." in said
    assert not ticked(window, "staleness", "with the last percent")
    assert window.run(end, "staleness") > 245


def test_many_curves_are_shown_where_they_reach_the_target_and_whole_at_a_click(
    window: Browser, tmp_path: Path
) -> None:
    runs = [recorded(f"run-{i}", number=i, epochs=12) for i in range(8)]
    write_report(runs, tmp_path / "crowd.html")
    window.open(tmp_path / "crowd.html")
    show(window, "accuracy")
    axes = PLOT + "return [plot.layout.xaxis.range, plot.layout.yaxis.range]"
    (_, right), (low, high) = window.run(axes, "accuracy")
    reached = [run.summary["time_to_accuracy"] for run in runs]
    ends = [run.records[-2]["time"] for run in runs]
    assert 0.6 < low < 0.9 < high <= 1.0 and max(reached) < right < max(ends)
    assert ticked(window, "accuracy", "around the target")
    (_, right), (low, _) = window.run(axes, "accuracy")
    assert right >= max(ends) and low < 0.6


def test_a_figure_over_parameters_is_of_the_runs_that_are_plotted(window: Browser, tmp_path: Path) -> None:
    runs = [*seeds_of(0, "bsp", 2), *seeds_of(1, "asp", 2), *seeds_of(2, "ssp", 2)]
    for run, time in zip(runs, [4.0, 6.0, 1.0, 1.5, 0.1, None], strict=True):
        run.summary["time_to_accuracy"] = time
    write_report(
        runs, tmp_path / "against.html", requests=[FigureRequest.parse("x=sync y=time_to_accuracy,accuracy line=sync")]
    )
    window.open(tmp_path / "against.html")
    show(window, "parameters")
    points = (
        PLOT + "return plot.data.map((one) => [one.x[0], one.y[0], one.error_y.array[0], one.error_y.arrayminus[0]])"
    )
    assert window.run(points, "parameters") == [["bsp", 5.0, 1.0, 1.0], ["asp", 1.25, 0.25, 0.25]]
    caption = "return document.querySelector('#parameters figcaption').textContent"
    assert "1 setting without a point: not every seed has it." in window.run(caption)
    assert window.run("return document.querySelectorAll('#parameters .plot').length") == 2
    window.run("document.querySelector(arguments[0]).click()", "#table input[aria-label='plot 0000-bsp-s1']")
    assert window.run(points, "parameters")[0] == ["bsp", 4.0, None, None], "no whisker"
    assert window.complaints() == []


def test_of_many_settings_two_stand_out_and_the_others_are_pale(window: Browser, tmp_path: Path) -> None:
    runs = [run for i in range(8) for run in seeds_of(i, f"mode{i}", 2)]
    for place, run in enumerate(runs):
        run.summary["time_to_accuracy"] = 20.0 - place
    runs[-1].summary["time_to_accuracy"] = 30.0  # so that the mean of its seeds is not among the first
    write_report(runs, tmp_path / "pair.html")
    window.open(tmp_path / "pair.html")
    show(window, "accuracy")
    clear = "return plot.data.filter((one) => one.name !== 'interval' && one.opacity === 1).map((one) => one.name)"
    bands = "return plot.data.filter((one) => one.name === 'interval').length"
    pick = "const s = document.getElementById('accuracy-highlight'); s.value = arguments[0];"
    pick += "s.dispatchEvent(new Event('change'))"
    named = window.run(PLOT + clear, "accuracy")
    assert sorted(named) == ["0005-mode5 (mean of 2 seeds)", "0006-mode6 (mean of 2 seeds)"], "by the means of seeds"
    assert window.run(PLOT + bands, "accuracy") == 2
    keys = "return [...document.querySelectorAll('#accuracy .legend li:not(.pale)')].map((one) => one.textContent)"
    faint = "return getComputedStyle(document.querySelector('#accuracy .legend .pale .swatch')).opacity"
    assert sorted(window.run(keys)) == sorted(named) and float(window.run(faint)) < 0.5
    label = window.run("return document.getElementById('accuracy-highlight').options[5].value")
    window.run(pick, label)
    assert window.run(PLOT + clear, "accuracy") == [f"{label[1:]} (mean of 2 seeds)"]
    window.run(pick, "all")
    assert len(window.run(PLOT + clear, "accuracy")) == window.run(PLOT + bands, "accuracy") == 8
    assert len(window.run(keys)) == 8
    assert window.complaints() == []


@needs_axe
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_serious(window: Browser, file: Path, width: int, dark: bool) -> None:
    window.open(file, dark=dark, width=width)
    window.run(DRAW_ALL)
    assert violations(window, ("serious", "critical")) == []
    window.run(
        "document.querySelector('label[for=filter]').remove();document.getElementById('filter').placeholder = ''"
    )
    assert [rule for rule, _ in violations(window, ("serious", "critical"))] == ["label"], "it does look"
