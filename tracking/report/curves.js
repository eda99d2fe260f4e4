// A metric over time, epochs, bytes or steps.
const X_AXES = [
  ['time', 'time', 'training time, s'],
  ['epoch', 'epochs', 'epochs'],
  ['bytes', 'bytes sent', 'bytes sent by all workers'],
  ['step', 'steps', 'steps of a worker'],
];
const MARKED = 160; // points in a plot that have markers; more would hide the lines
const CROWD = 5; // curves that reach the target: more overlap unless one looks closer
const SCORES = ['accuracy', 'r2']; // what a target is of: a run has one of them
const READ = new Map(); // decoded curves, by the encoded ones

function decoded(run, curve) {
  if (!READ.has(curve)) {
    const step = axisOf(curve, 'step');
    const bytes = run.bytesOfStep === null ? null : step.map((at) => at * run.bytesOfStep);
    READ.set(curve, { y: floats(curve.y), step, bytes, time: axisOf(curve, 'time'), epoch: axisOf(curve, 'epoch') });
  }
  return READ.get(curve);
}

function curveOf(run, metric) {
  const found = run.curves.find(([place]) => report.metrics[place] === metric);
  return found ? found[1] : null;
}

function curvesSection(section, body, controls) {
  const asked = section.dataset.metrics;
  const special = [...SCORES, 'training loss', 'test loss'];
  const metrics = asked === '*'
    ? report.metrics.filter((name) => !special.includes(name))
    : report.metrics.filter((name) => asked.split(',').includes(name));
  if (!metrics.length) return false;
  const own = [];
  const again = () => redraw(own);
  const metric = metrics.length > 1
    ? choice(controls, `${section.id}-metric`, 'Metric', metrics.map((name, i) => [String(i), shorten(name, 60)]), again)
    : { value: '0' };
  const known = X_AXES.filter(([axis]) => runs.some((run) => run.curves.some(([, curve]) => hasAxis(run, curve, axis))));
  const x = choice(controls, `${section.id}-x`, 'Against', known.map(([axis, name]) => [axis, name]), again);
  const logarithmic = SCORES.includes(section.id) ? { checked: false } : tick(controls, 'logarithmic', again);
  const targets = SCORES.includes(section.id) && runs.some((run) => run.target !== null && run.target < 1);
  const near = targets ? tick(controls, 'around the target', again) : { checked: false };
  near.checked = runs.filter((run) => crossing(run) !== null).length >= CROWD;
  const together = report.seeds.length ? tick(controls, 'seeds together', again) : { checked: false };
  together.checked = report.seeds.length > 0;
  addButtons(controls, () => own);
  for (const kind of KINDS) {
    own.push(addFigure(body, section.dataset.title, kind, (shown) =>
      describeCurves(shown, metrics[Number(metric.value)], known.find(([axis]) => axis === x.value), { logarithmic: logarithmic.checked, together: together.checked, near: near.checked })));
  }
  return true;
}

function hasAxis(run, curve, axis) {
  return axis === 'bytes' ? run.bytesOfStep !== null : curve[axis] !== null;
}

function describeCurves(shown, metric, [axis, axisName, axisTitle], { logarithmic, together, near }) {
  const withCurve = shown.filter((run) => curveOf(run, metric));
  const some = withCurve.filter((run) => hasAxis(run, curveOf(run, metric), axis));
  const without = shown.length - some.length;
  const missing = without ? ` ${plural(without, 'run')} without such a curve.` : '';
  if (!some.length) return { summary: `No run that is plotted has ${metric} against ${axisName}.` };
  const percent = metric === 'accuracy';
  const settings = together ? settingsOf(some, metric, axis) : null;
  const traces = (settings ? seedTraces : curveTraces)(settings || some, metric, axis, percent);
  const y = axisStyle(forPlotly(metric), { type: logarithmic ? 'log' : 'linear' });
  if (percent) y.tickformat = '.0~%';
  const top = axis === 'bytes' ? Math.max(...some.map((run) => decoded(run, curveOf(run, metric)).bytes.at(-1))) : 0;
  const x = axisStyle(axisTitle, axis === 'bytes' ? byteTicks(top) : { rangemode: 'tozero' });
  const layout = baseLayout(x, y, isNarrow() ? 340 : 430);
  const targets = new Set(some.map((run) => run.target));
  const aimed = SCORES.includes(metric) && targets.size === 1 && some[0].target !== null;
  if (aimed) addTarget(layout, some[0].target, percent);
  const zoomed = aimed && near && zoom(layout, some, axis) ? ' Zoomed to where the target is reached.' : '';
  return {
    traces, layout, legend: settings ? legendOfSettings(settings, some) : legendOfRuns(some),
    summary: `${metric} of ${plural(some.length, 'run')} against ${axisName}. ${rangeAtEnd(some, metric)}${zoomed}${missing}${settings ? apart(settings, axisName) : ''}`,
  };
}

function scoreOf(run) {
  return SCORES.map((metric) => curveOf(run, metric)).find((curve) => curve !== null) || null;
}

// The place of the first evaluation at the target, or null.
function crossing(run) {
  const curve = scoreOf(run);
  const at = curve === null || run.target === null ? -1 : decoded(run, curve).y.findIndex((value) => value >= run.target);
  return at < 0 ? null : at;
}

function zoom(layout, some, axis) {
  const ends = some.filter((run) => crossing(run) !== null).map((run) => decoded(run, scoreOf(run))[axis][crossing(run)]);
  const { target } = some[0];
  if (!ends.length || target >= 1) return false;
  layout.yaxis.range = [Math.max(target - 2 * (1 - target), 0), Math.min(target + 0.9 * (1 - target), 1)];
  layout.xaxis = { ...layout.xaxis, range: [0, 1.15 * Math.max(...ends)] };
  return true;
}

// A line a run; of many runs those that look alike become one line with gaps, which is drawn in a fraction of the time.
function curveTraces(some, metric, axis, percent) {
  const groups = new Map();
  const points = some.reduce((sum, run) => sum + curveOf(run, metric).n, 0);
  for (const run of some) {
    const key = some.length > FEW ? run.look.slice(0, 2).join() : String(run.place);
    groups.set(key, [...(groups.get(key) || []), run]);
  }
  return [...groups.values()].map((group) => ({
    ...joined(group, metric, axis), ...lineStyle(group[0], some.length, points <= MARKED),
    hovertemplate: `%{customdata}<br>${percent ? '%{y:.2%}' : '%{y:.4~g}'} at %{x:.4s}<extra></extra>`,
  }));
}

function joined(group, metric, axis) {
  const [x, y, names] = [[], [], []];
  for (const run of group) {
    const points = decoded(run, curveOf(run, metric));
    const name = forPlotly(shortLabel(run));
    for (let i = 0; i < points.y.length; i += 1) {
      x.push(points[axis][i]);
      y.push(points.y[i]);
      names.push(name);
    }
    x.push(null);
    y.push(null);
    names.push('');
  }
  return { type: 'scatter', x, y, customdata: names, name: group.length === 1 ? names[0] : '', connectgaps: false };
}

function lineStyle(run, count, marked) {
  const [colour, dash, marker] = run.look;
  return {
    mode: marked ? 'lines+markers' : 'lines', opacity: count > 100 ? 0.6 : 1,
    line: { color: colours()[colour], dash, width: count > FEW ? 1 : 2 }, marker: { symbol: marker, size: 7 },
  };
}

function byteTicks(top) { // 0, 20 MiB, 40 MiB, ...
  const unit = 1024 ** Math.max(Math.min(Math.floor(Math.log(Math.max(top, 1)) / Math.log(1024)), 4), 0);
  const rough = top / unit / (isNarrow() ? 3 : 5) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const distance = [1, 2, 5, 10].find((times) => times * power >= rough) * power * unit;
  const values = Array.from({ length: Math.floor(top / distance) + 1 }, (_, i) => i * distance);
  return { tickvals: values, ticktext: values.map((value) => humanBytes(value).replace('.0 ', ' ')), rangemode: 'tozero' };
}

function addTarget(layout, target, percent) {
  const { quiet } = palette();
  layout.shapes = [{
    type: 'line', xref: 'paper', x0: 0, x1: 1, y0: target, y1: target, line: { color: quiet, dash: 'dot', width: 1.5 },
  }];
  layout.annotations = [{
    xref: 'paper', x: 1, xanchor: 'right', y: target, yanchor: 'bottom', showarrow: false,
    text: percent ? `target ${(100 * target).toFixed(2).replace(/\.?0+$/, '')} %` : `target ${target}`, font: { color: quiet, size: 12 },
  }];
}

function rangeAtEnd(some, metric) { // no run is named: which seed was lucky says nothing of its setting
  const ends = some.map((run) => decoded(run, curveOf(run, metric)).y.at(-1)).filter(Number.isFinite);
  if (!ends.length || ![...SCORES, 'training loss', 'test loss'].includes(metric)) return '';
  const [low, high] = [Math.min(...ends), Math.max(...ends)].map((end) => (metric === 'accuracy' ? `${(100 * end).toFixed(2)} %` : compact(end)));
  return low === high ? `At the end: ${low}.` : `At the end: ${low} to ${high}.`;
}
