// Each run's configuration, made when it is opened; and where two runs' differ.
function configOf(run) {
  const pairs = new Map();
  for (let i = 0; i < run.config.length; i += 2) pairs.set(run.config[i], run.config[i + 1]);
  return pairs;
}

function valueOf(pairs, key) {
  return pairs.has(key) ? report.configValues[pairs.get(key)] : 'not set';
}

function buildConfigurations() {
  const parent = document.getElementById('folded');
  for (const run of runs) {
    const folded = make('details', null, make('summary', null, bdi(run.label)));
    folded.addEventListener('toggle', () => {
      if (folded.open && folded.children.length === 1) folded.append(configTable(run));
    });
    parent.append(folded);
  }
}

function configTable(run) {
  const pairs = configOf(run);
  if (!pairs.size) return make('p', [['class', 'note']], 'Its configuration is not known.');
  const lines = [...pairs.keys()].map((key) => valueLine(report.configKeys[key], valueOf(pairs, key)));
  return make('table', [['class', 'values']], make('tbody', null, ...lines));
}

function valueLine(key, ...values) {
  return make('tr', null, make('th', [['scope', 'row']], bdi(key)), ...values.map((value) => make('td', null, bdi(value))));
}

function buildDifference() {
  const selects = ['one', 'other'].map((id) => document.getElementById(id));
  for (const select of selects) {
    for (const run of runs) select.append(make('option', [['value', String(run.place)]], shorten(run.label, 70)));
    select.addEventListener('change', () => showDifference(selects));
  }
  selects[1].value = String(Math.min(1, runs.length - 1));
  showDifference(selects);
}

function showDifference(selects) {
  const [one, other] = selects.map((select) => runs[Number(select.value)]);
  const parent = document.getElementById('differences');
  const said = document.getElementById('differs');
  parent.replaceChildren();
  if (!one || !other) return;
  const [first, second] = [configOf(one), configOf(other)];
  const keys = [...new Set([...first.keys(), ...second.keys()])];
  const differing = keys.filter((key) => first.get(key) !== second.get(key));
  const unknown = [one, other].filter((run) => !run.config.length);
  said.textContent = unknown.length
    ? `not known: the configuration of ${unknown.map((run) => run.name).join(' and ')}`
    : `${differing.length} of ${plural(keys.length, 'key')} differ`;
  parent.className = 'values';
  if (!differing.length) return;
  const head = make('tr', null, ...['key', one.name, other.name].map((text) => make('th', [['scope', 'col']], bdi(text))));
  const lines = differing.map((key) => valueLine(report.configKeys[key], valueOf(first, key), valueOf(second, key)));
  parent.append(make('thead', null, head), make('tbody', null, ...lines));
}
