"""What tests ask of an open report."""

from browser import Browser

NAMES = """
return [...document.querySelectorAll('#table tbody .name')].filter((e) => e.offsetParent).map((e) => e.textContent)
"""
DRAW_ALL = """
for (const section of document.querySelectorAll('main section')) {
  section.scrollIntoView();
  await new Promise((next) => requestAnimationFrame(() => setTimeout(next, 0)));
}
const undrawn = () => [...document.querySelectorAll('figure')]
  .filter((f) => f.offsetParent && !f.querySelector('figcaption').textContent);
while (undrawn().length) {
  undrawn()[0].scrollIntoView();
  await new Promise((next) => requestAnimationFrame(() => setTimeout(next, 0)));
}
"""


def show(window: Browser, section: str) -> None:
    """Scroll there and wait until what is in sight is drawn, anew where it changed while it was out of sight."""
    window.run(f"document.getElementById('{section}').scrollIntoView()")
    window.wait_for(f"document.querySelector('#{section} figure:not([aria-busy]) .plot .plot-container')")
