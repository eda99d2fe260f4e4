// Puts the page together.
const BUILDERS = { // by a figure's kind
  lines: linesSection, rows: rowsSection, histogram: histogramSection, ranking: rankingSection, coordinates: coordinatesSection,
  against: againstSection,
};

function buildVerdict() {
  const list = document.getElementById('verdicts');
  const sentences = report.verdicts.length ? report.verdicts : ['No run says which accuracy it aimed at.'];
  list.append(...sentences.map((sentence) => make('li', null, bdi(sentence))));
  const counts = new Map();
  for (const run of runs) counts.set(run.status, (counts.get(run.status) || 0) + 1);
  const parts = [...counts].map(([status, count]) => `${count} ${status}`);
  const modelled = runs.filter((run) => run.modelled).length;
  if (modelled) parts.push(`${modelled} modelled on the virtual cluster, in plots of their own`);
  document.getElementById('counts').textContent = `${plural(runs.length, 'run')}: ${parts.join(', ')}.`;
}

function buildSection(section) {
  const title = make('h2', [['id', `${section.id}-title`]], section.title);
  const controls = make('div', [['class', 'controls']]);
  const body = make('div', null);
  const guide = section.guide ? [make('p', [['class', 'note']], section.guide)] : [];
  const element = make('section', [['id', section.id], ['aria-labelledby', title.id]], title, ...guide, controls, body);
  document.getElementById(section.id === 'ranking' ? 'compared' : 'difference').before(element);
  BUILDERS[section.figures[0].kind](section, body, controls);
}

function buildContents() {
  const entries = [...document.querySelectorAll('main section')].filter((section) => !section.hidden);
  const links = entries.map((section) => make('a', [['href', `#${section.id}`]], section.querySelector('h2').textContent));
  document.getElementById('contents').append(...links);
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  document.getElementById('theme').textContent = dark ? 'Light mode' : 'Dark mode';
  recolourSwatches();
  redraw();
}

const system = window.matchMedia('(prefers-color-scheme: dark)');
let chosen = false;
document.documentElement.dataset.theme = system.matches ? 'dark' : 'light';
buildVerdict();
buildCompared();
buildTable(() => redraw());
report.sections.forEach(buildSection);
buildSchedules();
buildPictures();
buildDifference();
buildConfigurations();
buildContents();
setTheme(system.matches);
document.getElementById('theme').addEventListener('click', () => { chosen = true; setTheme(!isDark()); });
system.addEventListener('change', () => { if (!chosen) setTheme(system.matches); });
let narrow = isNarrow();
window.addEventListener('resize', () => {
  if (isNarrow() === narrow) return;
  narrow = isNarrow();
  redraw();
});
