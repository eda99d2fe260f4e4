// A column against a parameter or another column: the mean of each setting's seeds, and their range.
const TICKED = 12; // values that each have a tick

function againstSection(section, body, controls) {
  const own = [];
  addButtons(controls, () => own);
  for (const kind of KINDS) {
    for (const figure of section.figures.filter(({ modelled }) => modelled === kind.modelled)) {
      figure.panels.forEach((panel, i) => {
        own.push(addFigure(body, `${panel.name} against ${figure.x.name}`, kind, (shown) => describeAgainst(figure, i, shown)));
      });
    }
  }
}

function describeAgainst(figure, panel, shown) {
  const plotted = new Set(shown.map(({ place }) => place));
  const y = figure.panels[panel];
  const settings = figure.traces.map((trace) => trace.points.map((point) => meanAndRange(point, panel, plotted)).filter(Boolean));
  const drawn = settings.map((points) => points.filter(({ mean }) => mean !== null));
  const left = settings.flat().length - drawn.flat().length;
  const lack = left ? ` ${plural(left, 'setting')} without a point: not every seed has it.` : '';
  if (!drawn.flat().length) return { summary: `No setting that is plotted has ${y.name}.${lack}` };
  const traces = figure.traces.map((trace, i) => againstTrace(trace, drawn[i], figure, y)).filter(({ x }) => x.length);
  const xs = [...new Set(drawn.flat().map(({ x }) => x))];
  const layout = baseLayout(
    axisStyle(forPlotly(figure.x.title), xTicks(figure.x, xs)),
    axisStyle(forPlotly(y.title), y.log ? { type: 'log', ...(y.unit === 'share' ? ticksOf(y) : {}) } : ticksOf(y, Math.max(...drawn.flat().map(({ high }) => high)))),
    isNarrow() ? 340 : 430);
  const named = figure.traces.filter(({ label }) => label);
  return {
    traces, layout, legend: named.map(({ label, look }) => make('li', null, swatch({ look }), make('span', [['class', 'name'], ['title', label]], bdi(label)))),
    summary: `${y.name} against ${figure.x.name}: ${plural(drawn.flat().length, 'setting')}${drawn.flat().some(({ low, high }) => high > low) ? ', each the mean of its seeds with their range' : ''}.${lack}`,
  };
}

// A setting's x, mean, low and high, of those of its runs that are plotted; a mean of null: not each of these has a value.
function meanAndRange(point, panel, plotted) {
  const values = point.values[panel].filter((_, i) => plotted.has(point.runs[i]));
  if (!values.length) return null;
  if (values.includes(null)) return { x: point.x, mean: null };
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return { x: point.x, mean, low: Math.min(...values), high: Math.max(...values) };
}

function againstTrace(trace, points, figure, y) {
  const [colour, dash, marker] = trace.look;
  const text = (value) => (y.unit === 'bytes' ? humanBytes(value) : measured(y, value));
  const said = ({ mean, low, high }) => text(mean) + (high > low ? ` (${text(low)} to ${text(high)})` : '');
  const label = trace.label ? `${forPlotly(shorten(trace.label, 60))}<br>` : '';
  return {
    type: 'scatter', mode: figure.joined ? 'lines+markers' : 'markers', name: forPlotly(shorten(trace.label, 60)),
    x: points.map(({ x }) => (typeof x === 'string' ? forPlotly(x) : x)), y: points.map(({ mean }) => mean),
    error_y: {
      type: 'data', symmetric: false, array: points.map(({ mean, high }) => high - mean || null),
      arrayminus: points.map(({ mean, low }) => mean - low || null), thickness: 1.5, width: 4,
    }, // null: a whisker of no length would be seen on the marker
    line: { color: colours()[colour], dash, width: 2 }, marker: { symbol: marker, size: 8, color: colours()[colour] },
    text: points.map(said), hovertemplate: `${label}%{x}: %{text}<extra></extra>`,
  };
}

function xTicks(axis, xs) {
  const numbers = xs.every((x) => typeof x === 'number');
  if (!numbers) return { type: 'category' };
  if (!axis.log) return ticksOf(axis, Math.max(...xs));
  return { type: 'log', ...(xs.length <= TICKED ? { tickvals: xs, ticktext: xs.map(compact) } : {}) };
}
