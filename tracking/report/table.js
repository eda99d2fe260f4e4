// The table of runs: sorted by a click on its heads, filtered by text, and the place where runs are taken out of plots.
const table = { body: null, boxes: [], lines: [], texts: [] };
const FEW = 40; // runs that a legend is made for

function buildTable(changed) {
  const head = make('tr', null, headCell({ title: 'run', number: false }, -1, changed));
  report.columns.forEach((column, i) => head.append(headCell(column, i, changed)));
  document.querySelector('#table thead').append(head);
  table.body = document.querySelector('#table tbody');
  for (const run of runs) {
    const box = make('input', [['type', 'checkbox']]);
    box.checked = true;
    box.setAttribute('aria-label', `plot ${run.name}`);
    box.addEventListener('change', () => { plot([run], box.checked); changed(); });
    const name = make('span', [['class', 'name'], ['title', run.name]], bdi(run.name));
    const line = make('tr', null, make('th', [['scope', 'row']], make('label', [['class', 'run']], box, swatch(run), name)));
    run.cells.forEach(([text], i) => line.append(bodyCell(text, report.columns[i], run)));
    table.boxes.push(box);
    table.lines.push(line);
    table.texts.push([run.name, ...run.cells.map(([text]) => text)].join('\n').toLowerCase());
  }
  table.body.append(...table.lines);
  document.getElementById('filter').addEventListener('input', filter);
  const press = (id, act) => document.getElementById(id).addEventListener('click', () => { act(); changed(); });
  press('only', () => { plot(runs, false); plot(runs.filter((run) => run.listed), true); });
  press('all', () => plot(runs, true));
  press('none', () => plot(runs, false));
  filter();
  if (report.sorted !== null) sortBy(head.children[report.sorted + 1], { ...report.columns[report.sorted], down: report.larger }, report.sorted);
}

// The rows as the terminal shows them.
function buildCompared() {
  const compared = report.compared;
  document.getElementById('compared').hidden = compared === null;
  if (compared === null) return;
  const cell = (tag, text, i, more) =>
    make(tag, [...(more || []), ...(compared.numbers[i] ? [['class', 'number']] : [])], bdi(text));
  const head = make('tr', null, ...compared.titles.map((title, i) => cell('th', title, i, [['scope', 'col']])));
  const lines = compared.rows.map((row) =>
    make('tr', null, ...row.map((text, i) => (i === 0 ? cell('th', text, i, [['scope', 'row']]) : cell('td', text, i)))));
  document.getElementById('comparison').append(make('thead', null, head), make('tbody', null, ...lines));
}

function headCell(column, place, changed) {
  const button = make('button', [['type', 'button']], column.title);
  const cell = make('th', [['scope', 'col'], ['aria-sort', 'none']], button);
  if (column.number) cell.className = 'number';
  button.addEventListener('click', () => { sortBy(cell, column, place); changed(); });
  return cell;
}

function bodyCell(text, column, run) {
  const cell = make('td', null, bdi(text));
  cell.className = column.number ? 'number' : column.title === 'reason' ? 'reason' : 'text';
  if (!column.number) cell.title = text;
  if (column.title === 'status' && run.status !== 'completed') cell.classList.add('bad');
  return cell;
}

// Numbers before texts, what is unknown last; the first click on a column where more is better puts the most on top.
function sortBy(cell, column, place) {
  const was = cell.getAttribute('aria-sort');
  const falling = was === 'none' ? Boolean(column.down) : was === 'ascending';
  for (const other of cell.parentNode.children) other.setAttribute('aria-sort', 'none');
  cell.setAttribute('aria-sort', falling ? 'descending' : 'ascending');
  const sign = falling ? -1 : 1;
  const keys = runs.map((run) => (place < 0 ? [run.name, null] : run.cells[place]));
  const rank = ([text, value]) => (value !== null ? 0 : text === '-' || text === '' ? 2 : 1);
  order = [...runs].sort((a, b) => {
    const [one, other] = [keys[a.place], keys[b.place]];
    if (rank(one) !== rank(other)) return rank(one) - rank(other);
    if (rank(one) === 0 && one[1] !== other[1]) return sign * (one[1] - other[1]);
    return sign * one[0].localeCompare(other[0], 'en', { numeric: true }) || a.place - b.place;
  });
  table.body.append(...order.map((run) => table.lines[run.place]));
}

function filter() {
  const wanted = document.getElementById('filter').value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const run of runs) {
    run.listed = wanted.every((word) => table.texts[run.place].includes(word));
    table.lines[run.place].hidden = !run.listed;
  }
  const listed = runs.filter((run) => run.listed).length;
  document.getElementById('found').textContent =
    listed === runs.length ? plural(runs.length, 'run') : `${listed} of ${plural(runs.length, 'run')}`;
}

function plot(some, on) {
  for (const run of some) {
    run.plotted = on;
    table.boxes[run.place].checked = on;
    table.lines[run.place].classList.toggle('unplotted', !on);
  }
}
