// Settings ranked by one number: a bar for the mean of the seeds, a whisker for its 95 % interval.
// Where a line has a dash, because the colours are used up, a bar has stripes.
const HATCHES = { solid: '', dash: '/', dot: '.', dashdot: 'x', longdash: '\\', longdashdot: '+' };

function rankingSection(section, body, controls) {
  let own = [];
  const again = () => redraw(own);
  const among = choiceOf(section, 'among', 'Among', controls, again);
  const measure = choiceOf(section, 'name', 'Ranked by', controls, again);
  own = addPlots(section, body, controls, (figure, shown) => (figure
    ? describeRanking(figure, shown) : { summary: `No run that is plotted has ${measure()}.` }),
  (figure) => figure.name === measure() && figure.among === among());
}

function describeRanking(figure, every) {
  const { name, larger } = figure;
  const valueOfRun = new Map(figure.runs.map((place, i) => [place, figure.values[i]]));
  const takesPart = new Map(figure.runs.map((place, i) => [place, figure.ranked[i]]));
  const shown = every.filter((run) => valueOfRun.has(run.place));
  const ended = shown.filter((run) => takesPart.get(run.place));
  const settings = bySetting(ended).map(([label, members]) => ({ label, members, ...spread(members.map((run) => valueOfRun.get(run.place))) }));
  const ranked = settings.filter(({ known, members }) => known === members.length);
  ranked.sort((a, b) => (larger ? b.mean - a.mean : a.mean - b.mean));
  const partly = settings.filter(({ known, members }) => known && known < members.length);
  const said = [
    ...partly.map(({ label, known, members }) => `Not ranked, as only ${known} of ${members.length} seeds have it: ${label}.`),
    lacking(settings.filter(({ known }) => !known).flatMap(({ members }) => members), figure.timed).trim(),
    ended.length < shown.length ? `Not ranked: ${countsOf(shown.filter((run) => !takesPart.get(run.place)))}.` : '',
  ].filter(Boolean).join(' ');
  if (!ranked.length) return { summary: `No run that is plotted has ${name}. ${said}`.trim() };
  const single = ranked.every(({ members }) => members.length === 1);
  const text = ({ mean, half }) => measured(figure.y, mean) + (half ? ` \u00b1 ${measured(figure.y, half)}` : '');
  const y = ranked.map((_, i) => i);
  const bound = boundOf(figure.y, figure.values);
  const ends = ranked.map(({ mean, half }) => bound(mean + half));
  const looks = ranked.map(({ members }) => members[0].look);
  const bars = {
    type: 'bar', orientation: 'h', y, x: ranked.map(({ mean }) => mean), width: 0.62,
    marker: {
      color: looks.map(([colour]) => colours()[colour]),
      pattern: { shape: looks.map(([, dash]) => HATCHES[dash]), fgcolor: palette().page, size: 8 },
    },
    error_x: {
      type: 'data', symmetric: false, array: ranked.map(({ mean }, i) => ends[i] - mean),
      arrayminus: ranked.map(({ mean, half }) => mean - bound(mean - half)), visible: !single, color: palette().text, thickness: 1.5, width: 5,
    },
    hovertext: ranked.map((setting) => `${forPlotly(shorten(setting.label, 60))}<br>${text(setting)}`), hovertemplate: '%{hovertext}<extra></extra>',
  };
  const values = {
    type: 'scatter', mode: 'text', y, x: ends, text: ranked.map((setting) => ` ${isNarrow() ? measured(figure.y, setting.mean) : text(setting)}`), textposition: 'middle right',
    hoverinfo: 'skip', cliponaxis: false,
  };
  const top = Math.max(...ends) * (isNarrow() ? 1.6 : 1.25);
  const whole = figure.y.unit === 'share' && top > 1 ? { tickvals: isNarrow() ? [0, 0.5, 1] : [0, 0.2, 0.4, 0.6, 0.8, 1] } : {};
  const axis = { ...(top > 0 ? { range: [0, top] } : {}), ...ticksOf(figure.y), ...whole };
  return {
    traces: [bars, values], layout: rowsLayout(ranked.map(({ label }) => label), name, axis),
    summary: `${plural(ranked.length, 'setting')} by ${name}, the ${larger ? 'largest' : 'smallest'} first. ${single
      ? 'One seed each: not a ranking, for another seed may order them otherwise.'
      : 'Bar: mean of the seeds; whisker: its 95 % interval. Where whiskers overlap, the order may be chance.'} ${said}`.trim(),
  };
}

// The labels of the settings of some runs, in the order in which the ranking opens; those without a rank are last.
function byRank(some) {
  const figures = (report.sections.find(({ id }) => id === 'ranking') || { figures: [] }).figures;
  const values = new Map(figures.filter(({ name }) => name === figures[0].name)
    .flatMap(({ runs: places, values: each, ranked }) => places.map((place, i) => [place, ranked[i] ? each[i] : null])));
  const plotted = new Set(some.map(({ place }) => place));
  const settings = report.settings.map(({ label, runs: places }) => [label, places.filter((place) => plotted.has(place))])
    .filter(([, places]) => places.length)
    .map(([label, places]) => ({ label, count: places.length, ...spread(places.map((place) => values.get(place) ?? null)) }));
  const rank = ({ known, count, mean }) => (known < count ? Infinity : figures[0].larger ? -mean : mean);
  const sorted = settings.map((setting) => ({ label: setting.label, rank: rank(setting) }));
  return sorted.sort((a, b) => (a.rank === b.rank ? 0 : a.rank - b.rank)).map(({ label }) => label);
}

function spread(values) { // of the values that are known
  const some = values.filter((value) => value !== null);
  const n = some.length;
  const mean = some.reduce((sum, value) => sum + value, 0) / n;
  const squares = some.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { known: n, mean, half: n > 1 ? report.t975[n] * Math.sqrt(squares / (n - 1) / n) : 0 };
}

function measured(axis, value) {
  if (axis.unit === 'share') return `${(100 * value).toFixed(2)} %`;
  return Math.abs(value) >= 100 && Math.abs(value) < 1e9 ? Math.round(value).toLocaleString('en') : String(Number(value.toPrecision(3)));
}
