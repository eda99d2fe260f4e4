// Settings ranked by one number: a bar for the mean of the seeds, a whisker for its 95 % interval.
const BROKEN = ['failed', 'diverged', 'damaged', 'pruned'];

// Where a line has a dash, because the colours are used up, a bar has stripes.
const HATCHES = { solid: '', dash: '/', dot: '.', dashdot: 'x', longdash: '\\', longdashdot: '+' };

function rankingSection(section, body, controls) {
  const known = report.measures.map((measure, i) => [String(i), measure.name]).filter(([i]) => runs.some((run) => run.results[i] !== null));
  if (!known.length) return false;
  const own = [];
  const again = () => redraw(own);
  const among = report.contests.length > 1
    ? choice(controls, 'ranking-among', 'Among', report.contests.map((name, i) => [String(i), shorten(name, 60)]), again) : { value: '0' };
  const measure = choice(controls, 'ranking-measure', 'Ranked by', known, again);
  if (known.some(([i]) => i === String(report.judged))) measure.value = String(report.judged);
  addButtons(controls, () => own);
  for (const kind of KINDS) {
    own.push(addFigure(body, section.dataset.title, kind, (shown) =>
      describeRanking(shown.filter((run) => run.contest === Number(among.value)), Number(measure.value))));
  }
  return true;
}

function describeRanking(shown, place) {
  const { name, larger } = report.measures[place];
  const ended = shown.filter((run) => !BROKEN.includes(run.status));
  const every = bySetting(ended).map(([label, members]) => ({ label, members, ...spread(members.map((run) => run.results[place])) }));
  const ranked = every.filter(({ known, members }) => known === members.length);
  ranked.sort((a, b) => (larger ? b.mean - a.mean : a.mean - b.mean));
  const partly = every.filter(({ known, members }) => known && known < members.length);
  const said = [
    ...partly.map(({ label, known, members }) => `Not ranked, as only ${known} of ${members.length} seeds have it: ${label}.`),
    lacking(every.filter(({ known }) => !known).flatMap(({ members }) => members), /samples\/s|step|speed/.test(name)).trim(),
    ended.length < shown.length ? `Not ranked: ${countsOf(shown.filter((run) => !ended.includes(run)))}.` : '',
  ].filter(Boolean).join(' ');
  if (!ranked.length) return { summary: `No run that is plotted has ${name}. ${said}`.trim() };
  const single = ranked.every(({ members }) => members.length === 1);
  const text = ({ mean, half }) => measured(name, mean) + (half ? ` \u00b1 ${measured(name, half)}` : '');
  const y = ranked.map((_, i) => i);
  const ends = ranked.map(({ mean, half }) => mean + half);
  const looks = ranked.map(({ members }) => members[0].look);
  const bars = {
    type: 'bar', orientation: 'h', y, x: ranked.map(({ mean }) => mean), width: 0.62,
    marker: {
      color: looks.map(([colour]) => colours()[colour]),
      pattern: { shape: looks.map(([, dash]) => HATCHES[dash]), fgcolor: palette().page, size: 8 },
    },
    error_x: { type: 'data', array: ranked.map(({ half }) => half), visible: !single, color: palette().text, thickness: 1.5, width: 5 },
    hovertext: ranked.map((setting) => `${forPlotly(shorten(setting.label, 60))}<br>${text(setting)}`), hovertemplate: '%{hovertext}<extra></extra>',
  };
  const values = {
    type: 'scatter', mode: 'text', y, x: ends, text: ranked.map((setting) => ` ${text(setting)}`), textposition: 'middle right',
    hoverinfo: 'skip', cliponaxis: false,
  };
  const top = Math.max(...ends) * (isNarrow() ? 1.6 : 1.25);
  const axis = { ...(top > 0 ? { range: [0, top] } : {}), ...(name === 'accuracy' ? { tickformat: '.0~%' } : {}) };
  return {
    traces: [bars, values], layout: rowsLayout(ranked.map(({ label }) => label), name, axis),
    summary: `${plural(ranked.length, 'setting')} by ${name}, the ${larger ? 'largest' : 'smallest'} first. ${single
      ? 'One seed each: not a ranking, for another seed may order them otherwise.'
      : 'Bar: mean of the seeds; whisker: its 95 % interval. Where whiskers overlap, the order may be chance.'} ${said}`.trim(),
  };
}

function spread(values) { // of the values that are known
  const some = values.filter((value) => value !== null);
  const n = some.length;
  const mean = some.reduce((sum, value) => sum + value, 0) / n;
  const squares = some.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { known: n, mean, half: n > 1 ? report.t975[n] * Math.sqrt(squares / (n - 1) / n) : 0 };
}

function measured(name, value) {
  if (name === 'accuracy') return `${(100 * value).toFixed(2)} %`;
  return Math.abs(value) >= 100 && Math.abs(value) < 1e9 ? Math.round(value).toLocaleString('en') : String(Number(value.toPrecision(3)));
}
