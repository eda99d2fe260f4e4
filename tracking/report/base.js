// The data, and making elements. Whatever comes from a run becomes text nodes, never markup.
const report = JSON.parse(document.getElementById('data').textContent);
const runs = report.runs;
runs.forEach((run, place) => { run.place = place; run.plotted = true; run.listed = true; });
let order = runs; // as the table is sorted
const SVG = 'http://www.w3.org/2000/svg';
const KINDS = [
  { modelled: false, title: 'Measured' },
  { modelled: true, title: 'Modelled (virtual cluster)' },
].filter((kind) => runs.some((run) => run.modelled === kind.modelled));
const mixed = KINDS.length > 1;
const DASHES = { solid: '', dash: '6 4', dot: '2 3', dashdot: '6 3 2 3', longdash: '10 4', longdashdot: '10 3 2 3' };

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of attributes || []) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function bdi(text) { // a name's direction stays its own
  return make('bdi', null, text);
}

function isDark() {
  return document.documentElement.dataset.theme === 'dark';
}

function colours() {
  return isDark() ? report.colours.dark : report.colours.light;
}

function swatch(run) {
  const box = document.createElementNS(SVG, 'svg');
  const line = document.createElementNS(SVG, 'line');
  box.setAttribute('class', 'swatch');
  box.setAttribute('viewBox', '0 0 30 12');
  box.setAttribute('aria-hidden', 'true');
  const [colour, dash] = run.look;
  const shape = { x1: 0, x2: 30, y1: 6, y2: 6, stroke: colours()[colour], 'stroke-width': 3, 'stroke-dasharray': DASHES[dash] };
  for (const name of Object.keys(shape)) line.setAttribute(name, shape[name]);
  box.dataset.colour = colour;
  box.append(line);
  return box;
}

function recolourSwatches() {
  for (const box of document.querySelectorAll('.swatch')) {
    box.firstChild.setAttribute('stroke', colours()[Number(box.dataset.colour)]);
  }
}

function shorten(text, length) {
  const letters = Array.from(text);
  if (letters.length <= length) return text;
  const head = Math.ceil((length - 1) * 0.6);
  return `${letters.slice(0, head).join('')}\u2026${letters.slice(letters.length - (length - 1 - head)).join('')}`;
}

// Plotly reads tags and entities in its texts: after this none is left.
function forPlotly(text) {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}

function shortLabel(run, length = 34) {
  const note = run.label.slice(run.name.length);
  return shorten(run.name, Math.max(length - note.length, 12)) + note;
}

function floats(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

// The axis of an encoded curve ('step', 'epoch', 'time', 'bytes'), or null where it is not known.
function axisOf(curve, axis) {
  const coded = curve[axis];
  if (coded === null) return null;
  if (axis === 'bytes') return axisOf(curve, 'step').map((step) => step * coded);
  if (typeof coded === 'string') return floats(coded);
  if (axis === 'epoch') return axisOf(curve, 'step').map((step) => step * coded);
  return Float32Array.from({ length: curve.n }, (_, i) => coded[0] + i * coded[1]);
}

function compact(number) {
  if (number === null || number === undefined) return '-';
  return Math.abs(number) >= 1e5 || (number !== 0 && Math.abs(number) < 1e-3)
    ? number.toExponential(2) : String(Number(number.toPrecision(4)));
}

function humanBytes(count) {
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (Math.abs(count) < 1024) return unit === 'B' ? `${count.toFixed(0)} B` : `${count.toFixed(1)} ${unit}`;
    count /= 1024;
  }
  return `${count.toFixed(1)} TiB`;
}

function plural(count, what) {
  return `${count} ${what}${count === 1 ? '' : 's'}`;
}
