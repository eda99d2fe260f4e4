// Runs that differ in their seed alone, as one line: the mean of their curves, and its 95 % interval as a band.
const GRID = 300; // points of a mean's curve

// [[label, runs]] of the settings of some runs, as far as these are of it.
function bySetting(some) {
  const wanted = new Map(some.map((run) => [run.place, run]));
  return report.settings
    .map(({ label, runs: places }) => [label, places.map((place) => wanted.get(place)).filter(Boolean)])
    .filter(([, members]) => members.length)
    .map(([label, members]) => [members.length > 1 ? `${label} (mean of ${members.length} seeds)` : members[0].label, members]);
}

// The value of a curve at x by straight lines between its points; x within its bounds, growing from call to call.
function reader(xs, ys) {
  let i = 0;
  return (x) => {
    while (i < xs.length - 2 && xs[i + 1] < x) i += 1;
    if (xs.length === 1 || xs[i + 1] === xs[i]) return ys[i];
    const share = Math.min(Math.max((x - xs[i]) / (xs[i + 1] - xs[i]), 0), 1);
    if (share === 0) return ys[i];
    return share === 1 ? ys[i + 1] : ys[i] + share * (ys[i + 1] - ys[i]);
  };
}

// { x, mean, half } where all the runs have been.
function meanCurve(lines, axis) {
  const curves = lines.map(decoded);
  const from = Math.max(...curves.map((curve) => curve[axis][0]));
  const to = Math.min(...curves.map((curve) => curve[axis].at(-1)));
  const all = [...new Set(curves.flatMap((curve) => [...curve[axis]]))].filter((x) => from <= x && x <= to).sort((a, b) => a - b);
  const every = Math.max(Math.ceil(all.length / GRID), 1);
  const x = all.filter((_, i) => i % every === 0 || i === all.length - 1);
  const readers = curves.map((curve) => reader(curve[axis], curve.y));
  const [mean, half] = [[], []];
  for (const at of x) {
    const values = readers.map((read) => read(at));
    const centre = values.reduce((sum, value) => sum + value, 0) / values.length;
    const squares = values.reduce((sum, value) => sum + (value - centre) ** 2, 0);
    mean.push(centre);
    half.push(report.t975[values.length] * Math.sqrt(squares / (values.length - 1) / values.length));
  }
  return { x, mean, half };
}

// Where an interval ends: a share is between 0 and 1, and a number of which all `values` are positive is not negative.
function boundOf({ unit }, values) {
  const low = values.every((value) => value === null || value >= 0) ? 0 : -Infinity;
  return (value) => Math.min(Math.max(value, low), unit === 'share' ? 1 : Infinity);
}

// [{ label, members (runs), lines, curve }] to draw: where seeds have nothing of the axis in common, each by itself.
function settingsOf(some, axis) {
  const lineOf = new Map(some.map((line) => [line.run, line]));
  return bySetting(some.map(({ run }) => runs[run])).flatMap(([label, members]) => {
    const lines = members.map((run) => lineOf.get(run.place));
    const curve = members.length > 1 ? meanCurve(lines, axis) : null;
    if (curve && curve.x.length > 1) return [{ label, members, lines, curve }];
    return lines.map((line) => ({ label: runs[line.run].label, members: [runs[line.run]], lines: [line], curve: null, split: members.length > 1 }));
  });
}

function seedTraces(settings, axis, yAxis, clear = null) {
  const traces = [];
  const percent = yAxis.unit === 'share';
  const count = settings.length;
  const marked = count * 10 <= MARKED;
  for (const { label, members, lines, curve } of settings) {
    const isClear = !clear || clear.has(members[0].place);
    const shownAs = (style) => (isClear ? style : pale(style, lines));
    if (!curve) {
      const style = shownAs(lineStyle(members[0], count, marked || lines.every(isPoint)));
      traces.push({ ...curveTraces(lines, axis, yAxis)[0], ...style });
      continue;
    }
    const { x, mean, half } = curve;
    const colour = colours()[members[0].look[0]];
    const bound = boundOf(yAxis, lines.flatMap((line) => [...decoded(line).y]));
    const edge = [...mean.map((y, i) => bound(y + half[i])), ...mean.map((y, i) => bound(y - half[i])).reverse()];
    if (isClear) traces.push({
      type: 'scatter', mode: 'lines', x: [...x, ...[...x].reverse()], y: edge, fill: 'toself', fillcolor: `${colour}30`,
      line: { width: 0, color: colour }, hoverinfo: 'skip', name: 'interval',
    });
    const name = forPlotly(shorten(label, 60));
    traces.push({
      type: 'scatter', x, y: mean, customdata: half, name, ...shownAs(lineStyle(members[0], count, marked && x.length <= 40)),
      hovertemplate: `${name}<br>${percent ? '%{y:.2%} \u00b1 %{customdata:.2%}' : '%{y:.4~g} \u00b1 %{customdata:.2~g}'}`
        + ' at %{x:.4s}<extra></extra>',
    });
  }
  return traces;
}

function legendOfSettings(settings, some, clear) {
  if (settings.length > FEW) return legendOfRuns(some.map(({ run }) => runs[run]), clear);
  return settings.map(({ label, members }) => legendLine(members[0], label, clear));
}

function apart(settings, axisName) {
  const count = settings.filter(({ split }) => split).length;
  return count ? ` Seeds that have no ${axisName} in common are drawn one by one (${plural(count, 'run')}).` : '';
}
