// One row a run, the first of the table on top: a step's parts, memory by kind, bytes; and staleness.
function rowsLayout(names, title, more, each = 26) {
  const height = Math.max(150, 84 + names.length * (names.length > FEW ? Math.min(each, 18) : each));
  const labels = names.map((name) => shorten(name, isNarrow() ? 22 : 40));
  const long = height > 720; // the axis stays in sight where one begins to read
  const y = axisStyle('', {
    tickvals: labels.map((_, i) => i), ticktext: labels.map(forPlotly), range: [labels.length - 0.4, -0.6], showgrid: false,
    zeroline: false, fixedrange: true, automargin: false, ticklabeloverflow: 'allow', // both take seconds at 500 rows
  });
  const layout = baseLayout(axisStyle(title, { rangemode: 'tozero', side: long ? 'top' : 'bottom', ...more }), y, height);
  layout.margin.l = widest(labels) + 14;
  return layout;
}

function widest(texts) { // px of the longest, as tick labels
  const context = make('canvas', null).getContext('2d');
  context.font = `12px ${FONT}`;
  return Math.max(0, ...texts.map((text) => context.measureText(text).width));
}

function rowLabel(run) {
  return shortLabel(run, isNarrow() ? 18 : 34);
}

function stepSection(section, body, controls) {
  const divided = (run) => run.step.some((part) => part !== null);
  return rowsSection(section, body, controls, divided, (some) => {
    const named = report.stepParts.map((part) => [part, colours()[report.colours.step[part]]]);
    const traces = named.map(([part, colour], i) => stacked(part, colour, some, (run) => scaled(run.step[i], 1e3), ' ms'));
    const share = (run) => (run.step[1] + run.step[2]) / (run.step[0] + run.step[1] + run.step[2] || 1);
    const worst = some.reduce((most, run) => (share(run) > share(most) ? run : most));
    return {
      traces, layout: { ...rowsLayout(some.map(rowLabel), 'median step, ms'), barmode: 'stack' }, legend: legendOfKinds(named),
      summary: `Compute, communication and waiting of ${plural(some.length, 'run')}. The largest share outside compute: `
        + `${labelled(worst)}, ${(100 * share(worst)).toFixed(0)} %.`,
    };
  });
}

function stacked(name, colour, some, value, unit, more) {
  return {
    type: 'bar', orientation: 'h', name, y: some.map((_, i) => i), x: some.map(value), width: 0.66,
    marker: { color: colour, line: { width: 0 } }, hovertemplate: `${name}: %{x:.4~g}${unit}<extra></extra>`, ...more,
  };
}

function scaled(value, factor) {
  return value === null ? null : value * factor;
}

// Measured above, predicted below, in one row; host kinds hatched. A parameter server has a row of its own.
function memorySection(section, body, controls) {
  const again = () => redraw(own);
  const other = tick(controls, 'with other (temporaries, runtime)', again);
  const own = [];
  const known = (run) => run.memory !== null || run.predictedMemory !== null;
  const made = rowsSection(section, body, controls, known, (some) => describeMemory(some, other.checked), own);
  other.closest('label').hidden = !runs.some((run) => (run.memory || [])[report.memoryKinds.indexOf('other')]);
  return made;
}

function describeMemory(some, withOther) {
  const mebi = 1 / 1024 ** 2;
  const lines = some.flatMap((run) => [
    { run, note: '', measured: run.memory, predicted: run.predictedMemory },
    ...(run.serverMemory ? [{ run, note: ', server', measured: run.serverMemory, predicted: null }] : []),
  ]);
  const kinds = report.memoryKinds.filter((kind, i) => (withOther || kind !== 'other')
    && lines.some((line) => (line.measured || [])[i] || (line.predicted || [])[i]));
  const named = kinds.map((kind) => [
    kind.replace('_', ' '), colours()[report.colours.memory[kind.replace('host_', '')]], kind.startsWith('host_')]);
  const traces = kinds.flatMap((kind, at) => {
    const place = report.memoryKinds.indexOf(kind);
    const [name, colour, hatched] = named[at];
    const pattern = hatched ? { shape: '/', fgcolor: colour, bgcolor: palette().page, size: 6 } : undefined;
    const bars = (which, offset, opacity) => ({
      type: 'bar', orientation: 'h', name, x: lines.map((line) => scaled((line[which] || [])[place] ?? null, mebi)),
      y: lines.map((_, i) => i), width: 0.34, offset, opacity, offsetgroup: which,
      marker: { color: colour, pattern, line: { color: colour, width: which === 'predicted' ? 1 : 0 } },
      hovertemplate: `${name}, ${which}: %{x:.4~g} MiB<extra></extra>`,
    });
    return [bars('measured', -0.36, 1), bars('predicted', 0.02, 0.5)];
  });
  const layout = rowsLayout(lines.map((line) => rowLabel(line.run) + line.note), 'MiB of the largest worker', {}, 38);
  layout.barmode = 'stack';
  return {
    traces: kinds.length ? traces : null, layout, legend: legendOfKinds(named),
    summary: `Peak bytes of the largest worker by kind, ${plural(some.length, 'run')}. `
      + 'Upper bar: measured; lower, paler bar: predicted. Hatched: on the host, beside a device.',
  };
}

function bytesSection(section, body, controls) {
  const known = (run) => run.bytes.some((count) => count !== null);
  const own = [];
  const logarithmic = tick(controls, 'logarithmic', () => redraw(own));
  return rowsSection(section, body, controls, known, (some) => {
    const most = Math.max(1, ...some.flatMap((run) => run.bytes.map((count) => count || 0)));
    const dots = (name, which, symbol, colour, size) => ({
      type: 'scatter', mode: 'markers', name, x: some.map((run) => run.bytes[which]), y: some.map((_, i) => i),
      marker: { symbol, color: colour, size, line: { width: 2, color: colour } }, text: some.map((run) => humanBytes(run.bytes[which] || 0)),
      hovertemplate: `${name}: %{text}<extra></extra>`, cliponaxis: false,
    });
    const named = [['measured', colours()[0]], ['predicted', colours()[1]]];
    const silent = some.filter((run) => run.bytes[0] === 0).map((run) => run.name);
    const off = some.map((run) => (run.bytes.includes(null) ? 0 : Math.abs(run.bytes[0] / (run.bytes[1] || 1) - (run.bytes[1] ? 1 : 0))))
      .filter((part) => part > 1e-6);
    const axis = logarithmic.checked ? { type: 'log', rangemode: 'normal', dtick: 1 } : byteTicks(most);
    const beside = off.length
      ? `${off.length} not as predicted, by at most ${compact(100 * Math.max(...off))} %.` : 'Each as predicted, where both are known.';
    const none = logarithmic.checked && silent.length ? ` Not on a logarithmic axis, as it sent nothing: ${silent.slice(0, 5).join(', ')}.` : '';
    return {
      traces: [dots('measured', 0, 'circle', colours()[0], 9), dots('predicted', 1, 'diamond-open', colours()[1], 15)],
      layout: rowsLayout(some.map(rowLabel), 'bytes that a worker sends in a step', axis), legend: legendOfKinds(named),
      summary: `Bytes a worker and step of ${plural(some.length, 'run')}: a dot measured, an open diamond predicted. ${beside}${none}`,
    };
  }, own);
}

function stalenessSection(section, body, controls) {
  const own = [];
  const whole = tick(controls, 'with the last percent', () => redraw(own));
  return rowsSection(section, body, controls, (run) => run.staleness.length > 0, (some) => {
    const traces = some.map((run) => {
      const total = run.staleness.reduce((sum, [, times]) => sum + times, 0) || 1;
      const filled = everyStaleness(run.staleness);
      const [colour, dash, marker] = run.look;
      return {
        type: 'scatter', mode: filled.length <= 60 && some.length <= FEW ? 'lines+markers' : 'lines',
        line: { shape: 'hvh', color: colours()[colour], dash, width: 2 }, marker: { symbol: marker, size: 6 },
        x: filled.map(([staleness]) => staleness), y: filled.map(([, times]) => times / total), name: forPlotly(shortLabel(run)),
        hovertemplate: '%{fullData.name}<br>staleness %{x}: %{y:.1%} of updates<extra></extra>',
      };
    });
    const worst = some.reduce((most, run) => (run.staleness.at(-1)[0] > most.staleness.at(-1)[0] ? run : most));
    const largest = worst.staleness.at(-1)[0];
    const end = whole.checked ? largest : Math.max(...some.map((run) => percentile99(run.staleness)));
    const cut = end < largest ? ` The axis ends at ${end}: 99 % of each run's updates are no staler.` : '';
    const layout = baseLayout(
      axisStyle(isNarrow() ? 'staleness, updates' : "staleness: others' updates between fetch and push", { range: [-0.02 * end, 1.04 * Math.max(end, 1)], dtick: Math.max(1, Math.ceil(end / 12)) }),
      axisStyle('share of updates', { tickformat: '.0~%', rangemode: 'tozero' }), isNarrow() ? 320 : 380);
    return {
      traces, layout, legend: legendOfRuns(some),
      summary: `Staleness of the updates of ${plural(some.length, 'run')}. Largest: ${largest}, of ${labelled(worst)}.${cut}`,
    };
  }, own);
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

function everyStaleness(pairs) { // with the zeros between, of no more than a screen can show
  const last = pairs.at(-1)[0];
  if (last > 400) return pairs;
  const times = new Map(pairs);
  return Array.from({ length: last + 1 }, (_, i) => [i, times.get(i) || 0]);
}

function lacking(without, timed) {
  const short = timed ? without.filter((run) => run.tooShort).length : 0;
  const other = without.length - short;
  return (short ? ` ${plural(short, 'run')} too short to measure.` : '') + (other ? ` ${plural(other, 'run')} without.` : '');
}

// A figure of each kind over the runs that have what it shows; says how many have not.
function rowsSection(section, body, controls, has, describe, own = []) {
  if (!runs.some(has)) return false;
  addButtons(controls, () => own);
  for (const kind of KINDS) {
    if (!runs.some((run) => run.modelled === kind.modelled && has(run))) continue;
    own.push(addFigure(body, section.dataset.title, kind, (shown) => {
      const some = shown.filter(has);
      if (!some.length) return { summary: 'No run that is plotted has this.' };
      const described = describe(some);
      return { ...described, summary: described.summary + lacking(shown.filter((run) => !has(run)), section.id === 'step') };
    }));
  }
  return true;
}
