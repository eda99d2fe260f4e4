// A metric of runs along one of several axes.
const MARKED = 160; // points in a plot that have markers; more would hide the lines
const CROWD = 5; // curves that reach the target: more overlap unless one looks closer
const PAIR = 2; // curves that stand out of a crowd
const READ = new Map(); // decoded curves, by the encoded ones

function decoded({ curve }) {
  if (!READ.has(curve)) {
    const axes = ['step', 'epoch', 'time', 'bytes'].map((axis) => [axis, axisOf(curve, axis)]);
    READ.set(curve, { y: floats(curve.y), ...Object.fromEntries(axes) });
  }
  return READ.get(curve);
}

function linesSection(section, body, controls) {
  let own = [];
  const again = () => redraw(own);
  const metric = choiceOf(section, 'name', 'Metric', controls, again);
  const axes = new Map(section.figures.flatMap((figure) => figure.x).map((axis) => [axis.key, axis]));
  const x = choice(controls, `${section.id}-x`, 'Against', [...axes.values()].map(({ key, name }) => [key, name]), again);
  const { aimed } = section.figures[0];
  const every = section.figures.flatMap((figure) => figure.lines);
  const logarithmic = aimed ? { checked: false } : tick(controls, 'logarithmic', again);
  const near = aimed && every.some(({ target }) => target !== null && target < 1) ? tick(controls, 'around the target', again) : { checked: false };
  near.checked = aimed && every.filter((line) => crossing(line) !== null).length >= CROWD;
  const several = report.settings.some((setting) => setting.runs.length > 1);
  const together = several ? tick(controls, 'seeds together', again) : { checked: false };
  together.checked = several;
  const count = Math.max(...section.figures.map((figure) => settingsOf(figure.lines, axes.keys().next().value).length));
  const highlight = count > CROWD && count <= FEW
    ? choice(controls, `${section.id}-highlight`, 'Highlight', [['pair', 'the first two of the ranking'], ['all', 'all'],
      ...report.settings.map(({ label }) => [`=${label}`, shorten(label, 40)])], again) : { value: 'all' };
  own = addPlots(section, body, controls, (figure, shown) => (figure
    ? describeLines(figure, shown, axes.get(x.value), { logarithmic: logarithmic.checked, together: together.checked, near: near.checked, highlight: highlight.value })
    : { summary: `No run that is plotted has ${metric()}.` }), (figure) => figure.name === metric());
}

function describeLines(figure, shown, axis, { logarithmic, together, near, highlight }) {
  const lineOf = new Map(figure.lines.map((line) => [line.run, line]));
  const some = shown.map((run) => lineOf.get(run.place)).filter((line) => line && line.curve[axis.key] !== null);
  const without = shown.length - some.length;
  const missing = without ? ` ${plural(without, 'run')} without such a curve.` : '';
  if (!some.length) return { summary: `No run that is plotted has ${figure.name} against ${axis.name}.` };
  const settings = together ? settingsOf(some, axis.key) : null;
  const clear = highlighted(some, highlight);
  const traces = settings ? seedTraces(settings, axis.key, figure.y, clear) : curveTraces(some, axis.key, figure.y, clear);
  const y = axisStyle(forPlotly(figure.y.name), { type: logarithmic ? 'log' : 'linear', ...ticksOf(figure.y) });
  const top = Math.max(...some.map((line) => decoded(line)[axis.key].at(-1)));
  const layout = baseLayout(axisStyle(axis.title, { rangemode: 'tozero', ...ticksOf(axis, top) }), y, isNarrow() ? 340 : 430);
  const targets = new Set(some.map(({ target }) => target));
  const aimed = figure.aimed && targets.size === 1 && some[0].target !== null;
  if (aimed) addTarget(layout, some[0].target, figure.y);
  const zoomed = aimed && near && zoom(layout, some, axis.key) ? ' Zoomed to where the target is reached.' : '';
  return {
    traces, layout,
    legend: settings ? legendOfSettings(settings, some, clear) : legendOfRuns(some.map(({ run }) => runs[run]), clear),
    summary: `${figure.name} of ${plural(some.length, 'run')} against ${axis.name}. ${rangeAtEnd(some, figure.y)}${clear ? ' The others are pale.' : ''}${zoomed}${missing}${settings ? apart(settings, axis.name) : ''}`,
  };
}

// The places of the runs that stand out: of the first two settings of the ranking, or of one that was chosen; null where all
// do, as where the chosen one is not plotted.
function highlighted(some, wanted) {
  if (wanted === 'all') return null;
  const labels = new Map(report.settings.flatMap(({ label, runs: places }) => places.map((place) => [place, label])));
  const named = wanted === 'pair'
    ? byRank(some.map(({ run }) => runs[run])).slice(0, PAIR) : [wanted.slice(1)];
  const clear = new Set(some.map(({ run }) => run).filter((run) => named.includes(labels.get(run))));
  return clear.size && clear.size < some.length ? clear : null;
}

// The look of a line that others stand out of.
function pale(style, lines) {
  return { ...style, mode: lines.every(isPoint) ? style.mode : 'lines', opacity: 0.3, line: { ...style.line, width: 1 } };
}

// The place of the first evaluation at the target, or null.
function crossing(line) {
  const at = line.target === null ? -1 : decoded(line).y.findIndex((value) => value >= line.target);
  return at < 0 ? null : at;
}

function zoom(layout, some, axis) {
  const ends = some.filter((line) => crossing(line) !== null).map((line) => decoded(line)[axis][crossing(line)]);
  const { target } = some[0];
  if (!ends.length || target >= 1) return false;
  layout.yaxis.range = [Math.max(target - 2 * (1 - target), 0), Math.min(target + 0.9 * (1 - target), 1)];
  layout.xaxis = { ...layout.xaxis, range: [0, 1.15 * Math.max(...ends)] };
  return true;
}

// A line a run; of many runs those that look alike become one line with gaps, which is drawn in a fraction of the time.
function curveTraces(some, axis, y, clear = null) {
  const groups = new Map();
  const points = some.reduce((sum, { curve }) => sum + curve.n, 0);
  for (const line of some) {
    const key = some.length > FEW && !clear ? runs[line.run].look.slice(0, 2).join() : String(line.run);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(line);
  }
  const styleOf = (group) => {
    const style = lineStyle(runs[group[0].run], some.length, points <= MARKED || group.some(isPoint));
    return clear && !clear.has(group[0].run) ? pale(style, group) : style;
  };
  return [...groups.values()].map((group) => ({
    ...joined(group, axis), ...styleOf(group),
    hovertemplate: `%{customdata}<br>${y.unit === 'share' ? '%{y:.2%}' : '%{y:.4~g}'} at %{x:.4s}<extra></extra>`,
  }));
}

function joined(group, axis) {
  const [x, y, names] = [[], [], []];
  for (const line of group) {
    const points = decoded(line);
    const name = forPlotly(shortLabel(runs[line.run]));
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

function isPoint({ curve }) { // without a marker it would not be seen
  return curve.n === 1;
}

function lineStyle(run, count, marked) {
  const [colour, dash, marker] = run.look;
  return {
    mode: marked ? 'lines+markers' : 'lines', opacity: count > 100 ? 0.6 : 1,
    line: { color: colours()[colour], dash, width: count > FEW ? 1 : 2 }, marker: { symbol: marker, size: 7 },
  };
}

function addTarget(layout, target, y) {
  const { quiet } = palette();
  layout.shapes = [{
    type: 'line', xref: 'paper', x0: 0, x1: 1, y0: target, y1: target, line: { color: quiet, dash: 'dot', width: 1.5 },
  }];
  layout.annotations = [{
    xref: 'paper', x: 1, xanchor: 'right', y: target, yanchor: 'bottom', showarrow: false, font: { color: quiet, size: 12 },
    text: y.unit === 'share' ? `target ${(100 * target).toFixed(2).replace(/\.?0+$/, '')} %` : `target ${target}`,
  }];
}

function rangeAtEnd(some, y) { // no run is named: which seed was lucky says nothing of its setting
  const ends = some.map((line) => decoded(line).y.at(-1)).filter(Number.isFinite);
  if (!ends.length) return '';
  const [low, high] = [Math.min(...ends), Math.max(...ends)].map((end) => (y.unit === 'share' ? `${(100 * end).toFixed(2)} %` : compact(end)));
  return low === high ? `At the end: ${low}.` : `At the end: ${low} to ${high}.`;
}
