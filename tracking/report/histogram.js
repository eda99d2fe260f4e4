// How often each whole value was there, as shares: a line a run. The axis ends where 99 % of each run's are, unless asked.
function histogramSection(section, body, controls) {
  let own = [];
  const whole = tick(controls, 'with the last percent', () => redraw(own));
  own = addPlots(section, body, controls, (figure, shown) => describeHistogram(figure, shown, whole.checked));
}

function describeHistogram(figure, shown, whole) {
  const countsOfRun = new Map(figure.runs.map((place, i) => [place, figure.counts[i]]));
  const some = shown.filter((run) => countsOfRun.has(run.place)).map((run) => [run, countsOfRun.get(run.place)]);
  if (!some.length) return { summary: 'No run that is plotted has this.' };
  const { name } = figure.x;
  const traces = some.map(([run, counts]) => {
    const total = counts.reduce((sum, [, times]) => sum + times, 0) || 1;
    const filled = everyValue(counts);
    const [colour, dash, marker] = run.look;
    return {
      type: 'scatter', mode: filled.length <= 60 && some.length <= FEW ? 'lines+markers' : 'lines',
      line: { shape: 'hvh', color: colours()[colour], dash, width: 2 }, marker: { symbol: marker, size: 6 },
      x: filled.map(([value]) => value), y: filled.map(([, times]) => times / total), name: forPlotly(shortLabel(run)),
      hovertemplate: `%{fullData.name}<br>${name} %{x}: %{y:.1%}<extra></extra>`,
    };
  });
  const [worst, counts] = some.reduce((most, one) => (one[1].at(-1)[0] > most[1].at(-1)[0] ? one : most));
  const largest = counts.at(-1)[0];
  const end = whole ? largest : Math.max(...some.map(([, of]) => percentile99(of)));
  const cut = end < largest ? ` The axis ends at ${end}: 99 % of each run's updates are no staler.` : '';
  const layout = baseLayout(
    axisStyle(isNarrow() ? name : figure.x.title, { range: [-0.02 * end, 1.04 * Math.max(end, 1)], dtick: Math.max(1, Math.ceil(end / 12)) }),
    axisStyle(figure.y.title, { ...ticksOf(figure.y), rangemode: 'tozero' }), isNarrow() ? 320 : 380);
  return {
    traces, layout, legend: legendOfRuns(some.map(([run]) => run)),
    summary: `${name} of the updates of ${plural(some.length, 'run')}. Largest: ${largest}, of ${worst.label}.${cut}${lacking(shown.filter((run) => !countsOfRun.has(run.place)), false)}`,
  };
}

function percentile99(pairs) { // the staleness that 99 % of the updates do not exceed
  const total = pairs.reduce((sum, [, times]) => sum + times, 0);
  let seen = 0;
  for (const [staleness, times] of pairs) {
    seen += times;
    if (seen >= 0.99 * total) return staleness;
  }
  return pairs.at(-1)[0];
}

function everyValue(pairs) { // with the zeros between, of no more than a screen can show
  const last = pairs.at(-1)[0];
  if (last > 400) return pairs;
  const times = new Map(pairs);
  return Array.from({ length: last + 1 }, (_, i) => [i, times.get(i) || 0]);
}
