// Parallel coordinates, where two or more numbers are swept: an axis for each parameter, the last for the metric.
const SCALES = { // cividis, which the colour-blind read as well; its dark end is left out on a dark page and the light on white
  light: [[0, '#00204c'], [0.35, '#414d6b'], [0.65, '#7c7b78'], [1, '#c4a73a']],
  dark: [[0, '#5b7fd1'], [0.35, '#8a9bb5'], [0.65, '#c9b869'], [1, '#ffea46']],
};

function coordinatesSection(section, body, controls) {
  let own = [];
  const metric = choiceOf(section, 'name', 'Judged by', controls, () => redraw(own));
  own = addPlots(section, body, controls, describeCoordinates, (figure) => figure.name === metric());
}

function describeCoordinates(figure, shown) {
  const metric = figure.name;
  const placeOf = new Map(figure.runs.map((place, i) => [place, i]));
  const of = shown.filter((run) => placeOf.has(run.place));
  const valueOfRun = (run) => figure.values[placeOf.get(run.place)];
  const some = of.filter((run) => valueOfRun(run) !== null && run.status !== 'failed');
  const left = of.length - some.length;
  const counted = left ? ` ${plural(left, 'run')} without a line: ${countsOf(of.filter((run) => !some.includes(run)))}.` : '';
  if (!some.length) return { summary: `No run that is plotted has ${metric}.${counted}` };
  const results = some.map(valueOfRun);
  const axes = [...figure.axes.map((name, i) => scaleOf(name, some.map((run) => figure.chosen[placeOf.get(run.place)][i]))), scaleOf(metric, results)];
  const [low, high] = [Math.min(...results), Math.max(...results)];
  const traces = some.map((run, i) => ({
    type: 'scatter', mode: 'lines+markers', x: axes.map((_, at) => at), y: axes.map((axis) => axis.places[i]),
    name: forPlotly(shortLabel(run)), connectgaps: false, cliponaxis: false, opacity: some.length > 100 ? 0.5 : 0.9,
    line: { color: colourAt((results[i] - low) / (high - low || 1)), width: some.length > 100 ? 1 : 2, shape: 'spline', smoothing: 0.6 },
    marker: { size: 6 }, text: axes.map((axis) => forPlotly(`${shorten(axis.name, 40)}: ${shorten(axis.texts[i], 40)}`)),
    hovertemplate: '%{fullData.name}<br>%{text}<extra></extra>',
  }));
  return {
    traces: [...traces, colourBar(low, high, metric)], layout: sweepLayout(axes),
    summary: `${plural(some.length, 'run')} over ${plural(figure.axes.length, 'swept parameter')}, coloured by ${metric}, `
      + `from ${compact(low)} to ${compact(high)}.${counted}`,
  };
}

function countsOf(some) {
  const counts = new Map();
  for (const run of some) {
    const what = run.status === 'completed' ? 'without the metric' : run.status;
    counts.set(what, (counts.get(what) || 0) + 1);
  }
  return [...counts].map(([what, count]) => `${count} ${what}`).join(', ');
}

// Where each value lies on its axis, 0 to 1, and the ticks; logarithmic where values span more than a factor of 50.
function scaleOf(name, values) {
  const known = values.filter((value) => value !== null);
  const numbers = known.every((value) => typeof value === 'number');
  const texts = values.map((value) => (value === null ? '-' : typeof value === 'number' ? compact(value) : value));
  if (!numbers || !known.length) {
    const kinds = [...new Set(texts)].sort((a, b) => a.localeCompare(b, 'en', { numeric: true }));
    const at = (text) => (kinds.length > 1 ? kinds.indexOf(text) / (kinds.length - 1) : 0.5);
    const step = Math.ceil(kinds.length / 12);
    return { name, texts, places: texts.map(at), ticks: kinds.filter((_, i) => i % step === 0).map((text) => [at(text), text]) };
  }
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const wide = low > 0 && high / low > 50;
  const to = wide ? Math.log : (value) => value;
  const at = (value) => (high > low ? (to(value) - to(low)) / (to(high) - to(low)) : 0.5);
  const unique = [...new Set(known)].sort((a, b) => a - b);
  const between = [0, 0.25, 0.5, 0.75, 1].map((part) =>
    (wide ? Math.exp(to(low) + part * (to(high) - to(low))) : low + part * (high - low)));
  const shown = unique.length <= 6 ? unique : between;
  return { name, texts, places: values.map((value) => (value === null ? null : at(value))), ticks: shown.map((value) => [at(value), compact(value)]) };
}

function sweepLayout(axes) {
  const { text, quiet, line, page } = palette();
  const narrow = isNarrow();
  const bare = { showticklabels: false, showgrid: false, zeroline: false, showline: false, ticks: '', fixedrange: true };
  const x = axisStyle('', { range: [-0.25, axes.length - 0.6], ...bare });
  const y = axisStyle('', { range: [-0.06, 1.16], ...bare });
  const layout = baseLayout(x, y, 440);
  layout.margin = { l: 20, r: 20, t: 12, b: 12 };
  layout.shapes = axes.map((_, at) => ({ type: 'line', x0: at, x1: at, y0: 0, y1: 1, line: { color: line, width: 1.5 }, layer: 'below' }));
  const title = (axis, at) => ({
    x: at, y: 1.06, yanchor: 'bottom', text: `<b>${forPlotly(shorten(axis.name, narrow ? 10 : 24))}</b>`, showarrow: false, font: { color: text, size: 13 },
  });
  const ticks = (axis, at) => axis.ticks.map(([place, label]) => ({
    x: at, y: place, xanchor: 'left', xshift: 7, text: forPlotly(shorten(label, narrow ? 10 : 22)), showarrow: false,
    font: { color: quiet, size: 12 }, bgcolor: page, borderpad: 1,
  }));
  layout.annotations = axes.flatMap((axis, at) => [title(axis, at), ...ticks(axis, at)]);
  return layout;
}

function colourBar(low, high, metric) {
  const scale = SCALES[isDark() ? 'dark' : 'light'];
  return {
    type: 'scatter', mode: 'markers', x: [null], y: [null], hoverinfo: 'skip', showlegend: false,
    marker: {
      color: [low], cmin: low, cmax: high > low ? high : low + 1, colorscale: scale, showscale: !isNarrow(),
      colorbar: { title: { text: forPlotly(metric), side: 'right' }, thickness: 12, len: 0.9, outlinewidth: 0 },
    },
  };
}

function colourAt(part) {
  const scale = SCALES[isDark() ? 'dark' : 'light'];
  const above = Math.max(1, scale.findIndex(([stop]) => stop >= part));
  const [[from, one], [to, other]] = [scale[above - 1], scale[above]];
  const share = (part - from) / (to - from);
  const mix = [1, 3, 5].map((at) => {
    const [a, b] = [parseInt(one.slice(at, at + 2), 16), parseInt(other.slice(at, at + 2), 16)];
    return Math.round(a + share * (b - a));
  });
  return `rgb(${mix.join(',')})`;
}
