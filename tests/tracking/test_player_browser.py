"""The player in a real browser: it plays, steps by keyboard, and shows what the strip shows."""

from pathlib import Path

import pytest
from browser import KEYS, Browser
from needs import needs_chromium
from watched_run import watched

from paceline.tracking.drawn import player
from paceline.tracking.drawn.lanes import as_html

pytestmark = [pytest.mark.browser, needs_chromium]
KEYS |= {"right": "\ue014", "left": "\ue012", "home": "\ue011", "end": "\ue010"}
SHOW = """
const slider = document.querySelector('.player input'), show = (at) => {
  slider.value = at; slider.dispatchEvent(new Event('input')); };
"""
# The attributes and words of a picture that may move, numbers in four digits
SEEN = """
const seen = (pictures) => [...pictures].flatMap((svg) => [...svg.querySelectorAll(
  '[data-state], [data-mark], [data-bar], [data-bound], [data-number], [data-cell], [data-text], [data-point], '
  + '[data-tie], [data-now], [data-curve], circle.head, [data-rows] g')].map((each) => [each.tagName,
  ...each.getAttributeNames().sort().map((name) => `${name}=${each.getAttribute(name)}`), each.textContent.trim()
  ].join(' ').replace(/-?\\d+\\.\\d+/g, (n) => Number(n).toFixed(1).replace('-0.0', '0.0')))).sort();
"""


RUNS = {
    "ssp": ("sync=ssp", "hardware.workers=3", "steps=6", "stragglers=one_slow"),
    "easgd": ("sync=easgd", "hardware.workers=3", "steps=9", "stragglers=lognormal"),
    "krum": ("aggregate=krum", "attack=sign_flip", "attack.workers=1", "hardware.workers=5", "steps=3"),
    "pipedream": ("strategy=pipeline", "strategy.schedule=pipedream", "hardware.workers=2", "steps=5"),
}


def written(folder: Path, name: str) -> Path:
    document = watched(folder, *RUNS[name]).document
    file = folder / "player.html"
    file.write_text(as_html(name, player.STYLE + player.as_html(document), player.script()))
    return file


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("player"), "ssp")


def state(window: Browser) -> tuple[float, str]:
    """The time in microseconds, and what is said of it."""
    return (
        window.run("return Number(document.querySelector('.player input').value)"),
        window.run("return document.querySelector('.player output').textContent"),
    )


def times_of(window: Browser) -> list[float]:
    data = "JSON.parse(document.querySelector('.player script').textContent)"
    return window.run(f"return {data}.moments.map((moment) => moment[0])")


def test_keys_step_through_the_moments_and_back(window: Browser, page: Path) -> None:
    window.open(page)
    assert window.complaints() == [] and window.requests() == []
    assert state(window) == (0, "0 ms: The run begins.")
    window.run("document.querySelector('.player').focus()")
    times = window.run(
        "return JSON.parse(document.querySelector('.player script').textContent).moments.map((m) => m[0])"
    )
    window.press("right", "right", "right")
    assert state(window)[0] == pytest.approx(times[3])
    window.press("left")
    assert state(window)[0] == pytest.approx(times[2]) and state(window)[1].startswith(f"{times[2] / 1e3:.3g} ms: ")
    window.press("end")
    assert state(window)[0] >= times[-1] and "clock 6" in state(window)[1]
    window.press("home")
    assert state(window)[0] == 0


def test_it_plays_and_pauses(window: Browser, page: Path) -> None:
    window.open(page)
    window.run("document.querySelector('.player').focus()")
    window.press("space")
    assert window.run("return document.querySelectorAll('.player button')[1].textContent") == "Pause"
    window.wait_for("document.querySelector('.player input').value > 0")
    window.press("space")
    paused = state(window)
    window.run("await new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)))")
    assert state(window) == paused and paused[0] > 0
    assert window.run("return document.querySelectorAll('.player button')[1].textContent") == "Play"


def test_with_less_motion_it_goes_from_moment_to_moment(window: Browser, page: Path) -> None:
    window.open(page)
    window.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    window.run(
        "document.querySelector('.player select').value = 4; document.querySelectorAll('.player button')[1].click()"
    )
    window.wait_for("document.querySelector('.player input').value > 0")
    window.run("document.querySelectorAll('.player button')[1].click()")
    times = window.run(
        "return JSON.parse(document.querySelector('.player script').textContent).moments.map((m) => m[0])"
    )
    assert min(abs(state(window)[0] - at) for at in times) < 1e-6


@pytest.mark.parametrize("name", RUNS)
def test_the_animation_shows_what_the_strip_shows_at_its_moments(window: Browser, tmp_path: Path, name: str) -> None:
    """Python draws the strip, and player.js the animation."""
    window.open(written(tmp_path, name))
    same = window.run(
        SHOW
        + SEEN
        + """
        const strip = JSON.parse(document.querySelector('.player script').textContent).strip;
        const said = () => document.querySelector('.player output').textContent;
        return [...document.querySelectorAll('.strip figure')].map((figure, i) => {
          show(strip[i]);
          const [one, other] = [figure, document.querySelector('.stage')].map((e) => seen(e.querySelectorAll('svg')));
          return [said() === figure.querySelector('figcaption').textContent, one.length, one.length === other.length,
            one.filter((each, k) => each !== other[k]).slice(0, 3),
            other.filter((each, k) => each !== one[k]).slice(0, 3)];
        });"""
    )
    assert len(same) == player.MOMENTS
    for said, count, as_many, wrong, other in same:
        assert (said, as_many, wrong, other) == (True, True, [], []) and count > 10


def test_without_a_script_the_strip_is_there(window: Browser, page: Path) -> None:
    window.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        window.open(page, width=390)
        text = window.devtools("DOM.getDocument", depth=-1)
        assert text["root"] and window.devtools("Page.getLayoutMetrics")["cssContentSize"]["width"] <= 390
        found = window.devtools("DOM.performSearch", query="//div[@class='strip']/figure/*[name()='svg']")
        buttons = window.devtools("DOM.performSearch", query="//button")
        assert (found["resultCount"], buttons["resultCount"]) == (2 * player.MOMENTS, 0)
    finally:
        window.devtools("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window(window: Browser, page: Path, width: int) -> None:
    window.open(page, width=width)
    assert window.run("return document.documentElement.scrollWidth") <= width
    wide = window.run(
        "return [...document.querySelectorAll('.stage svg')].map((each) => each.getBoundingClientRect().width)"
    )
    assert min(wide) >= 320
