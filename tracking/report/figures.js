// What all plots share: they are drawn when they come into sight, and again when runs, order or colours change.
const figures = [];
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif';
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const figure = figures.find((known) => known.element === entry.target);
    figure.near = entry.isIntersecting;
    if (figure.near && figure.stale) draw(figure);
  }
}, { rootMargin: '200px' });
const PLOT_CONFIG = { displayModeBar: false, responsive: true, displaylogo: false, plotlyServerURL: '', topojsonURL: '' };

// A section of figures of one kind: measured ones and modelled ones each have a plot; of several of a plot's, one is
// chosen by `pick`. `describe(figure, runs)` gives { traces, layout, summary, legend }, or { summary } alone where there
// is nothing to draw; the figure is undefined where none of this kind has what was chosen.
function addPlots(section, body, controls, describe, pick = () => true) {
  const own = [];
  addButtons(controls, () => own);
  for (const kind of KINDS) {
    const some = section.figures.filter((figure) => figure.modelled === kind.modelled);
    if (some.length) own.push(addFigure(body, section.title, kind, (shown) => describe(some.find(pick), shown)));
  }
  return own;
}

// A choice among what a section's figures differ in; null where they do not.
function choiceOf(section, field, title, controls, changed) {
  const names = [...new Set(section.figures.map((figure) => figure[field]))];
  const select = names.length > 1
    ? choice(controls, `${section.id}-${title.split(' ').at(-1).toLowerCase()}`, title, names.map((name, i) => [String(i), shorten(name, 60)]), changed) : null;
  return () => names[Number(select === null ? 0 : select.value)];
}

function addFigure(parent, title, kind, describe) {
  const plotArea = make('div', [['class', 'plot'], ['role', 'img']]);
  const holder = make('div', [['class', 'holder']], plotArea);
  const legend = make('ul', [['class', 'legend']]);
  const caption = make('figcaption', null);
  const element = make('figure', null, holder, legend, caption);
  const name = mixed ? `${title}, ${kind.title.toLowerCase()}` : title;
  if (mixed || kind.modelled) parent.append(make('h3', null, kind.title));
  parent.append(element);
  const figure = { element, holder, plotArea, legend, caption, name, kind, describe, near: false, stale: true, drawn: false };
  figures.push(figure);
  watcher.observe(element);
  return figure;
}

function redraw(some = figures) {
  for (const figure of some) {
    figure.stale = true;
    figure.element.setAttribute('aria-busy', 'true'); // what it shows is of before
    if (figure.near) draw(figure);
  }
}

function draw(figure) {
  figure.stale = false;
  figure.element.removeAttribute('aria-busy');
  const shown = order.filter((run) => run.plotted && run.modelled === figure.kind.modelled);
  const { traces, layout, summary, legend } = figure.describe(shown);
  figure.caption.textContent = summary.charAt(0).toUpperCase() + summary.slice(1);
  figure.plotArea.setAttribute('aria-label', `${figure.name}. ${summary}`);
  figure.legend.replaceChildren(...(legend || []));
  figure.holder.hidden = !traces;
  if (!traces) {
    if (figure.drawn) Plotly.purge(figure.plotArea);
    figure.drawn = false;
    return;
  }
  figure.plotArea.style.height = `${layout.height}px`;
  figure.plotArea.style.minHeight = '0';
  figure.holder.classList.toggle('tall', layout.height > 720);
  if (layout.height > 720) figure.holder.tabIndex = 0; else figure.holder.removeAttribute('tabindex');
  Plotly.react(figure.plotArea, traces, layout, PLOT_CONFIG);
  figure.drawn = true;
}

// Two buttons for what the mouse does on a plot, so that the keyboard can.
function addButtons(controls, of) {
  const reset = make('button', [['type', 'button']], 'Reset zoom');
  reset.addEventListener('click', () => {
    for (const figure of of()) if (figure.drawn) draw(figure);
  });
  const save = make('button', [['type', 'button']], 'Save picture');
  save.addEventListener('click', () => {
    for (const figure of of()) if (figure.drawn) savePicture(figure);
  });
  controls.append(reset, save);
}

function savePicture(figure) {
  const { data, layout } = figure.plotArea;
  const shown = { ...layout, showlegend: data.length <= FEW, paper_bgcolor: palette().page, width: 1000, height: layout.height + 100 };
  const filename = `paceline-${figure.name.replace(/[^A-Za-z0-9]+/g, '-').toLowerCase()}`;
  Plotly.downloadImage({ data, layout: shown }, { format: 'png', scale: 2, width: 1000, height: shown.height, filename });
}

function palette() {
  return isDark()
    ? { page: '#161a20', text: '#e8ecf1', quiet: '#a7b1bd', grid: '#2c343d', line: '#5a6572', raised: '#1f252d' }
    : { page: '#ffffff', text: '#16202a', quiet: '#55606c', grid: '#e6eaee', line: '#9aa4ae', raised: '#f5f7f9' };
}

function isNarrow() {
  return window.innerWidth < 640;
}

function axisStyle(title, more) {
  const { grid, line, quiet } = palette();
  return {
    title: { text: title, standoff: 12 }, automargin: true, gridcolor: grid, zerolinecolor: grid, linecolor: line,
    tickcolor: line, tickfont: { color: quiet, size: 12 }, ...more,
  };
}

function baseLayout(x, y, height) {
  const { text, page, raised, line } = palette();
  return {
    height, xaxis: x, yaxis: y, showlegend: false, hovermode: 'closest', dragmode: isNarrow() ? false : 'zoom',
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)',
    font: { family: FONT, size: 13, color: text },
    hoverlabel: { bgcolor: raised, bordercolor: line, font: { color: text }, namelength: -1, align: 'left' },
    margin: { l: 8, r: 16, t: 12, b: 8, pad: 2 }, modebar: { bgcolor: page },
  };
}

// `clear`: the places of the runs that stand out; null where all do.
function legendOfRuns(some, clear = null) {
  if (some.length > FEW) return [make('li', [['class', 'note']], `Colours and dashes: see the table (${some.length} runs).`)];
  return some.map((run) => legendLine(run, run.label, clear));
}

function legendLine(run, label, clear) {
  const look = clear && !clear.has(run.place) ? [['class', 'pale']] : null;
  return make('li', look, swatch(run), make('span', [['class', 'name'], ['title', label]], bdi(label)));
}

function legendOfKinds(kinds) { // [[name, colour, hatched]]
  return kinds.map(([name, colour, hatched]) => {
    const key = make('span', [['class', 'key'], ['aria-hidden', 'true']]);
    key.style.background = hatched
      ? `repeating-linear-gradient(45deg, ${colour} 0 2px, transparent 2px 4px)` : colour;
    return make('li', null, key, name);
  });
}

function choice(controls, id, title, options, changed) {
  const select = make('select', [['id', id]]);
  for (const [value, text] of options) select.append(make('option', [['value', value]], text));
  select.addEventListener('change', changed);
  controls.append(make('label', [['for', id]], title), select);
  return select;
}

function tick(controls, title, changed) {
  const box = make('input', [['type', 'checkbox']]);
  box.addEventListener('change', changed);
  controls.append(make('label', null, box, title));
  return box;
}

// How the numbers of an axis are written.
function ticksOf({ unit }, top = 0) {
  if (unit === 'share') return { tickformat: '.0~%' };
  return unit === 'bytes' ? byteTicks(top) : {};
}

function byteTicks(top) { // 0, 20 MiB, 40 MiB, ...
  const unit = 1024 ** Math.max(Math.min(Math.floor(Math.log(Math.max(top, 1)) / Math.log(1024)), 4), 0);
  const rough = top / unit / (isNarrow() ? 3 : 5) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const distance = [1, 2, 5, 10].find((times) => times * power >= rough) * power * unit;
  const values = Array.from({ length: Math.floor(top / distance) + 1 }, (_, i) => i * distance);
  return { tickvals: values, ticktext: values.map((value) => humanBytes(value).replace('.0 ', ' ')), rangemode: 'tozero' };
}
