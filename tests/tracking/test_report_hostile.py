"""Names, values and metrics that mean harm are text in the report: not run, not markup, and nothing is fetched."""

from dataclasses import replace
from pathlib import Path

import pytest
from browser import Browser
from needs import needs_chromium
from report_page import DRAW_ALL, NAMES, show
from some_runs import failed, recorded
from test_report_schedules import schedule

from paceline.tracking.report import write_report
from paceline.tracking.report.pictures import MOST
from paceline.tracking.run_data import RunData, Swept
from paceline.tracking.text import shown

pytestmark = [pytest.mark.browser, needs_chromium]

HOSTILE = [
    "</script><script>window.hacked=1</script>",
    "<!--<script>",
    "<img src=x onerror=window.hacked=1>",
    "<svg/onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "\"'`><b onclick=window.hacked=1>",
    "a\u2028b\u2029c",
    "\u202egnp.exe",
    "${window.hacked=1}",
    "%{x} %{customdata} %{meta[0]}",
    "{{constructor.constructor('window.hacked=1')()}}",
    "__proto__",
    "constructor",
    "toString",
    "<b>bold</b>",
    "<a href='javascript:window.hacked=1'>x</a>",
    "one<br>two",
    "&lt;i&gt;&amp;&#60;",
    "nul\x00bell\x07escape\x1b[31m",
    "\ud800 alone",
    "$x^2$",
    "long " * 4000,
    "مرحبا",
]
HOVER = """
const plot = document.querySelector('#accuracy .plot');
Plotly.Fx.unhover(plot);
const label = () => [...plot.querySelectorAll('.hoverlayer .hovertext')].map((one) => one.textContent).join();
while (label()) await new Promise((next) => requestAnimationFrame(next));
Plotly.Fx.hover(plot, [{ curveNumber: PLACE, pointNumber: 0 }]);
while (!label()) await new Promise((next) => requestAnimationFrame(next));
return label();
"""


def hostile_runs() -> list[RunData]:
    """Every text of the corpus as a run's name, key, value, metric, swept parameter, status and reason."""
    runs = []
    for i, text in enumerate(HOSTILE):
        swept = Swept("sweep", i, 0, {"sync": text, text: text, "lr": i / 10})
        config = {text: text, "sync": {"name": text, text: {"again": text}}}
        summary = {"sync": text, "strategy": text, "model": text, "data": text}
        run = recorded(text, points=12, number=i, swept=swept, config=config, summary=summary)
        run.records[-1]["reason"] = text
        for record in run.records:
            if record["kind"] == "step":
                record[text] = record["loss"]
        runs.append(replace(run, schedule=schedule(schedule=text)))
    return [*runs, failed("lost", HOSTILE[0]), recorded("odd", status=HOSTILE[2])]


@pytest.fixture(scope="module")
def hostile(window: Browser, tmp_path_factory: pytest.TempPathFactory) -> Browser:
    file: Path = tmp_path_factory.mktemp("report") / "hostile.html"
    write_report(hostile_runs(), file)
    window.open(file)
    return window


def test_hostile_texts_are_shown_as_text_and_never_run(hostile: Browser) -> None:
    hostile.run("document.querySelectorAll('details').forEach((folded) => { folded.open = true; })")
    for metric in range(min(20, len(HOSTILE))):
        hostile.run(
            f"const s = document.getElementById('others-metric'); s.value = '{metric}';"
            "s.dispatchEvent(new Event('change'))"
        )
        hostile.run("document.getElementById('others').scrollIntoView()")
    hostile.run(DRAW_ALL)
    assert sorted(hostile.run(NAMES)) == sorted(shown(text) for text in [*HOSTILE, "lost", "odd"])
    parts = hostile.run(
        "return [window.hacked === undefined, Object.keys(Object.prototype).length, document.querySelectorAll("
        "'body img:not(.schedule), body iframe, body object, body b, body br, main a, main script, svg a').length,"
        " document.querySelectorAll('main [onclick], main [onerror], main [onload]').length]"
    )
    assert parts == [True, 0, 0, 0]
    config = hostile.run("return document.getElementById('folded').textContent")
    assert all(shown(text) in config for text in HOSTILE)
    drawn = hostile.run(
        "return [...document.querySelectorAll('img.schedule')].map((image) => image.complete && image.naturalWidth > 0)"
    )
    assert len(drawn) == 2 * len(HOSTILE) + MOST and all(drawn)
    assert all(
        shown(text) in hostile.run("return document.getElementById('schedules').textContent") for text in HOSTILE
    )
    reasons = "return [...document.querySelectorAll('#table tbody td.reason')].map((cell) => cell.textContent)"
    assert shown(HOSTILE[0]) in "\n".join(hostile.run(reasons))
    assert hostile.complaints() == []
    assert hostile.requests() == []


@pytest.mark.parametrize("text", [text for text in HOSTILE if len(shown(text)) < 34])
def test_plotly_shows_labels_as_they_are(hostile: Browser, text: str) -> None:
    show(hostile, "step")
    labels = hostile.run("return [...document.querySelectorAll('#step .ytick')].map((tick) => tick.textContent)")
    assert shown(text) in labels
    show(hostile, "accuracy")
    said = hostile.run(HOVER.replace("PLACE", str(hostile.run(NAMES).index(shown(text)))))
    assert shown(text) in said


ATTEMPTS = [
    "fetch('http://127.0.0.1:9/x').catch(() => {})",
    "document.body.append(Object.assign(new Image(), { src: 'http://127.0.0.1:9/x.png' }))",
    "document.body.append(Object.assign(document.createElement('script'), { textContent: 'window.hacked = 1' }))",
    "const b = document.createElement('b'); b.setAttribute('onclick', 'window.hacked = 1'); b.click()",
    "setTimeout('window.hacked = 1')",
    "document.body.append(Object.assign(document.createElement('iframe'), { src: 'http://127.0.0.1:9/' }))",
    "new WebSocket('ws://127.0.0.1:9/')",
    "navigator.sendBeacon('http://127.0.0.1:9/x')",
]


def test_the_policy_forbids_requests_and_foreign_scripts(hostile: Browser) -> None:
    for attempt in ATTEMPTS:
        violated = hostile.run(
            "const seen = new Promise((next) => document.addEventListener('securitypolicyviolation',"
            " (event) => next(event.effectiveDirective), { once: true }));"
            f"try {{ {attempt} }} catch (error) {{}}"
            "return Promise.race([seen, new Promise((next) => setTimeout(() => next(null), 3000))])"
        )
        assert violated is not None, attempt
    assert hostile.run("return window.hacked === undefined")
