// Rows of bars or dots, in the order of the table: a step's parts, memory by kind, bytes.
const SAID_BESIDE = / \((modelled|mean of \d+ seeds)\)/; // by the heading and the caption; a telephone has no room for it

function rowsLayout(names, title, more, each = 26) {
  const height = Math.max(150, 84 + names.length * (names.length > FEW ? Math.min(each, 18) : each));
  const labels = names.map((name) => (isNarrow() ? shorten(name.replace(SAID_BESIDE, ''), 22) : shorten(name, 40)));
  const long = height > 720; // the axis stays in sight where one begins to read
  const y = axisStyle('', {
    tickvals: labels.map((_, i) => i), ticktext: labels.map(forPlotly), range: [labels.length - 0.4, -0.6], showgrid: false,
    zeroline: false, fixedrange: true, automargin: false, ticklabeloverflow: 'allow', // both take seconds at 500 rows
  });
  const layout = baseLayout(axisStyle(isNarrow() ? inLines(title, 26) : title, { rangemode: 'tozero', side: long ? 'top' : 'bottom', ...more }), y, height);
  layout.margin.l = widest(labels) + 14;
  return layout;
}

function inLines(text, length) {
  return text.replace(new RegExp(`(.{1,${length}})(?: |$)`, 'g'), '$1<br>').replace(/<br>$/, '');
}

function widest(texts) { // px of the longest, as tick labels
  const context = make('canvas', null).getContext('2d');
  context.font = `12px ${FONT}`;
  return Math.max(0, ...texts.map((text) => context.measureText(text).width));
}

function rowLabel(run) {
  return isNarrow() ? run.label : shortLabel(run, 34);
}

function rowsSection(section, body, controls) {
  let own = [];
  const again = () => redraw(own);
  const [{ series }] = section.figures;
  const held = (i) => section.figures.some((figure) => figure.rows.some((row) => row.values[i]));
  const asked = series.find((one, i) => one.asked && held(i));
  const all = asked ? tick(controls, asked.asked, again) : { checked: false };
  const logarithmic = series.some(({ mark }) => mark === 'bar') ? { checked: false } : tick(controls, 'logarithmic', again);
  own = addPlots(section, body, controls, (figure, shown) => describeRows(figure, shown, all.checked, logarithmic.checked));
}

function describeRows(figure, shown, all, logarithmic) {
  const rowsOf = new Map();
  for (const row of figure.rows) rowsOf.set(row.run, [...(rowsOf.get(row.run) || []), row]);
  const some = shown.filter((run) => rowsOf.has(run.place));
  if (!some.length) return { summary: 'No run that is plotted has this.' };
  const rows = some.flatMap((run) => rowsOf.get(run.place));
  const drawn = figure.series.map((series, i) => ({ series, values: rows.map((row) => row.values[i]) }));
  const bars = drawn.filter(({ series }) => series.mark === 'bar');
  const names = new Set(bars.filter(({ series, values }) => (all || !series.asked) && values.some(Boolean)).map(({ series }) => series.name));
  const visible = drawn.filter(({ series }) => series.mark !== 'bar' || names.has(series.name));
  const layers = new Set(figure.series.map(({ layer }) => layer)).size;
  const most = Math.max(1, ...rows.flatMap((row) => row.values.map((value) => value || 0)));
  const axis = logarithmic ? { type: 'log', rangemode: 'normal', dtick: 1 } : ticksOf(figure.x, most);
  const layout = rowsLayout(rows.map((row) => rowLabel(runs[row.run]) + row.note), figure.x.title, axis, layers > 1 ? 38 : 26);
  if (bars.length) layout.barmode = 'stack';
  const silent = logarithmic ? rows.filter((row) => row.values[0] === 0).map((row) => runs[row.run].name) : [];
  return {
    traces: visible.length ? visible.map((one) => rowsTrace(one, figure, layers)) : null, layout,
    legend: legendOfKinds(visible.filter(({ series }) => series.legend).map(({ series }) => [series.name, colours()[series.colour], series.hatched])),
    summary: [
      figure.says.replace('{runs}', plural(some.length, 'run')), remarkOn(figure.remark, rows),
      silent.length ? `Not on a logarithmic axis, as it is 0: ${silent.slice(0, 5).join(', ')}.` : '',
      lacking(shown.filter((run) => !rowsOf.has(run.place)), figure.lacking === 'too short').trim(),
    ].filter(Boolean).join(' '),
  };
}

function rowsTrace({ series, values }, figure, layers) {
  const colour = colours()[series.colour];
  const name = series.pale ? `${series.name}, predicted` : series.name;
  const text = values.map((value) => (figure.x.unit === 'bytes' ? humanBytes(value || 0) : `${compact(value)} ${figure.x.unit}`));
  const common = { name, y: values.map((_, i) => i), x: values, text, hovertemplate: `${name}: %{text}<extra></extra>` };
  if (series.mark !== 'bar') {
    const [symbol, size] = series.mark === 'dot' ? ['circle', 9] : ['diamond-open', 15];
    return { ...common, type: 'scatter', mode: 'markers', cliponaxis: false, marker: { symbol, color: colour, size, line: { width: 2, color: colour } } };
  }
  const pattern = series.hatched ? { shape: '/', fgcolor: colour, bgcolor: palette().page, size: 6 } : undefined;
  const place = layers > 1 ? { width: 0.34, offset: series.layer ? 0.02 : -0.36, offsetgroup: String(series.layer) } : { width: 0.66 };
  const marker = { color: colour, pattern, line: { color: colour, width: series.pale ? 1 : 0 } };
  return { ...common, type: 'bar', orientation: 'h', textposition: 'none', opacity: series.pale ? 0.5 : 1, marker, ...place };
}

function remarkOn(remark, rows) {
  if (remark === null) return '';
  const over = rows.filter((row) => row.remarkable > remark.least);
  if (!over.length) return remark.none;
  const top = over.reduce((most, row) => (row.remarkable > most.remarkable ? row : most));
  const words = { '{count}': String(over.length), '{most}': compact(top.remarkable), '{run}': runs[top.run].label };
  return remark.some.replace(/\{(count|most|run)\}/g, (name) => words[name]);
}

function lacking(without, timed) {
  const short = timed ? without.filter((run) => run.tooShort).length : 0;
  const other = without.length - short;
  return (short ? ` ${plural(short, 'run')} too short to measure.` : '') + (other ? ` ${plural(other, 'run')} without.` : '');
}
