// Runs that differ in their seed alone, as one line: the mean of their curves, and its 95 % interval as a band.
const GRID = 300; // points of a mean's curve

// [[label, runs]] of those that are shown, in their order; a run of no group, or that was not completed, by itself.
function bySetting(some) {
  const groupOf = new Map();
  for (const group of report.seeds) for (const place of group.runs) groupOf.set(place, group);
  const settings = new Map();
  for (const run of some) {
    const group = run.status === 'completed' ? groupOf.get(run.place) : null;
    const key = group || run;
    if (!settings.has(key)) settings.set(key, [group ? group.label : null, []]);
    settings.get(key)[1].push(run);
  }
  return [...settings.values()].map(([label, members]) =>
    [members.length > 1 ? `${label} (mean of ${members.length} seeds)` : labelled(members[0]), members]);
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
function meanCurve(members, metric, axis) {
  const curves = members.map((run) => decoded(run, curveOf(run, metric)));
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

function seedTraces(some, metric, axis, percent) {
  const traces = [];
  const marked = some.length * 10 <= MARKED;
  for (const [label, members] of bySetting(some)) {
    if (members.length === 1) {
      traces.push({ ...curveTraces(members, metric, axis, percent)[0], ...lineStyle(members[0], some.length, marked) });
      continue;
    }
    const { x, mean, half } = meanCurve(members, metric, axis);
    const colour = colours()[members[0].look[0]];
    const bound = (y) => (percent ? Math.min(Math.max(y, 0), 1) : y);
    const edge = [...mean.map((y, i) => bound(y + half[i])), ...mean.map((y, i) => bound(y - half[i])).reverse()];
    traces.push({
      type: 'scatter', mode: 'lines', x: [...x, ...[...x].reverse()], y: edge, fill: 'toself', fillcolor: `${colour}30`,
      line: { width: 0, color: colour }, hoverinfo: 'skip', name: 'interval',
    });
    const name = forPlotly(shorten(label, 60));
    traces.push({
      type: 'scatter', x, y: mean, customdata: half, name, ...lineStyle(members[0], some.length, marked && x.length <= 40),
      hovertemplate: `${name}<br>${percent ? '%{y:.2%} \u00b1 %{customdata:.2%}' : '%{y:.4~g} \u00b1 %{customdata:.2~g}'}`
        + ' at %{x:.4s}<extra></extra>',
    });
  }
  return traces;
}

function legendOfSettings(some) {
  const settings = bySetting(some);
  if (settings.length > FEW) return legendOfRuns(some);
  return settings.map(([label, members]) =>
    make('li', null, swatch(members[0]), make('span', [['class', 'name'], ['title', label]], bdi(label))));
}
