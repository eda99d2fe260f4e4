(() => {
'use strict';
const { names, groups } = JSON.parse(document.getElementById('data').textContent);
const QUIET = 250; // milliseconds without a change, after which the plan is asked for
const POLL = 700; // milliseconds
const byId = (id) => document.getElementById(id);
const sides = names.map(() => ({ choices: {}, values: {} }));
const views = [];
let asked = 0;
let waiting = null;
let version = '';
let failed = false; // the last request

function make(tag, attributes = {}, ...inner) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'text') element.textContent = value;
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false) element.setAttribute(name, value);
  }
  element.append(...inner);
  return element;
}

async function send(name, body) {
  const options = { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) };
  const answer = await fetch(name, options);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

async function get(name) {
  const answer = await fetch(name, { cache: 'no-store' });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

const say = (words) => { byId('said').textContent = words; };
const lost = (error) => {
  failed = true;
  say(error instanceof TypeError ? 'The lab has ended: start it again in the terminal.' : error.message);
};

// -- the two sides

function makeSide(name, place) {
  const view = { groups: {}, fields: {}, sections: {} };
  const side = make('fieldset', { class: 'side' }, make('legend', { text: name }));
  const more = make('details', {}, make('summary', { text: 'More choices' }));
  for (const group of groups) (group.first ? side : more).append(makeGroup(group, place, view));
  const ofRun = makeFields();
  view.sections[''] = ofRun.firstChild;
  side.append(make('div', { class: 'group' }, ofRun), more);
  view.figures = make('dl');
  view.refusal = make('p', { class: 'wrong' });
  view.notes = make('div');
  const plan = { class: 'plan', role: 'group', 'aria-label': `Plan of ${name}`, 'aria-live': 'polite' };
  side.append(make('div', plan, make('h2', { text: 'Plan' }), view.figures, view.refusal, view.notes));
  view.command = make('code', { id: `command-${name}` });
  const copy = make('button', { type: 'button', 'aria-label': `Copy the command of ${name}`, text: 'Copy as command' });
  copy.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(view.command.textContent);
      say(`The command of ${name} is in the clipboard.`);
    } catch (error) {
      say(`The browser copies nothing: ${error.message}`);
    }
  });
  side.append(make('div', { class: 'command' }, view.command, copy));
  byId('sides').append(side);
  views.push(view);
}

function makeGroup(group, place, view) {
  const id = `${names[place]}-${group.group}`;
  const select = make('select', { id });
  for (const { name, about } of group.choices) {
    select.append(make('option', { value: name, text: about ? `${name}: ${about}` : name }));
  }
  select.addEventListener('change', () => {
    const side = sides[place];
    const prefix = `${group.group.replace('/', '.')}.`;
    side.choices[group.group] = select.value;
    for (const key of Object.keys(side.values)) if (key.startsWith(prefix)) delete side.values[key];
    plan();
  });
  const label = make('label', { for: id }, group.group, make('span', { class: 'meaning', text: `  ${group.meaning}` }));
  const fields = makeFields();
  const wrong = make('p', { class: 'wrong', id: `${id}-wrong` });
  view.groups[group.group] = { select, wrong };
  view.sections[group.group] = fields.firstChild;
  return make('div', { class: 'group' }, label, select, wrong, fields);
}

// A place for fields, and below it the words about the one that has the focus.
function makeFields() {
  const help = make('p', { class: 'help', 'aria-hidden': 'true' });
  const fields = make('div', { class: 'fields' });
  fields.addEventListener('focusin', ({ target }) => {
    help.textContent = target.closest('.field').querySelector('.about').textContent;
  });
  return make('div', { class: 'section' }, fields, help);
}

function makeField(field, place, view) {
  const id = `${names[place]}-${field.key}`;
  const about = [field.about, field.rule, `default ${field.usual}`].filter(Boolean).join('; ');
  const described = { id, 'aria-describedby': `${id}-about ${id}-wrong` };
  const input = field.values.length
    ? make('select', described, ...field.values.map((value) => make('option', { value, text: value })))
    : make('input', { ...described, type: 'text', spellcheck: 'false', autocomplete: 'off' });
  input.addEventListener('input', () => { sides[place].values[field.key] = input.value; planSoon(); });
  const wrong = make('p', { class: 'wrong', id: `${id}-wrong` });
  const label = make('label', { for: id, text: field.key.split('.').pop().replaceAll('_', ' ') });
  view.fields[field.key] = { input, wrong };
  return make('div', { class: 'field' }, label, input, make('p', { class: 'about', id: `${id}-about`, text: about }), wrong);
}

function showSide(told, place) {
  const view = views[place];
  for (const [group, name] of Object.entries(told.choices)) {
    const { select } = view.groups[group];
    if (![...select.options].some((option) => option.value === name)) select.append(make('option', { value: name, text: name }));
    select.value = name;
  }
  for (const [section, element] of Object.entries(view.sections)) showFields(told.fields[section] ?? [], element, place, view);
  view.figures.replaceChildren(...told.figures.flatMap(([name, value]) => [make('dt', { text: name }), make('dd', { text: value })]));
  view.notes.replaceChildren(...told.notes.map((text) => make('p', { class: 'note', text })));
  view.command.textContent = told.command;
  showRefusal(told.refusal, view);
}

// Fields that stay keep the focus and what is being typed.
function showFields(fields, element, place, view) {
  const keys = fields.map((field) => `${field.key} ${field.usual} ${field.about}`).join('\n');
  if (element.dataset.keys !== keys) {
    element.dataset.keys = keys;
    element.replaceChildren(...fields.map((field) => makeField(field, place, view)));
    element.nextSibling.textContent = '';
  }
  for (const { key, value } of fields) {
    const { input } = view.fields[key];
    if (input !== document.activeElement) input.value = value;
  }
}

function showRefusal(refusal, view) {
  view.refusal.textContent = refusal ? `${refusal.words} (exit status ${refusal.status})` : '';
  for (const [key, { input, select, wrong }] of Object.entries({ ...view.groups, ...view.fields })) {
    const named = refusal !== null && refusal.keys.includes(key);
    (input ?? select).setAttribute('aria-invalid', named);
    wrong.textContent = named ? refusal.words : '';
    if (named) wrong.closest('details')?.setAttribute('open', '');
  }
}

function planSoon() {
  clearTimeout(waiting);
  waiting = setTimeout(plan, QUIET);
}

async function plan() {
  clearTimeout(waiting);
  const number = ++asked;
  try {
    const told = await send('plan', { sides });
    if (number !== asked) return; // a later change has been sent
    if (failed) say('');
    failed = false;
    told.sides.forEach(showSide);
    byId('run').disabled = !byId('cancel').disabled || told.sides.some((side) => side.refusal);
  } catch (error) {
    lost(error);
  }
}

// -- the runs

async function run() {
  byId('run').disabled = true;
  try {
    const told = await send('run', { sides });
    told.sides.forEach(showSide);
    if (told.why) {
      say(told.why);
      plan(); // another try may be allowed
      if (told.going_on) setTimeout(look, 4 * POLL); // follows the runs of the other page
      return;
    }
    version = '';
    look();
  } catch (error) {
    lost(error);
  }
}

async function look() {
  try {
    const state = await get('state');
    byId('cancel').disabled = !state.going_on;
    say(state.runs.map(inWords).join('\n') || (state.going_on ? 'Starting.' : ''));
    if (state.version !== version) {
      version = state.version;
      showResults(await get('results'));
    }
    if (state.going_on) setTimeout(look, POLL);
    else byId('run').disabled = views.some((view) => view.refusal.textContent);
  } catch (error) {
    byId('cancel').disabled = true;
    lost(error);
  }
}

const inWords = (run) => `${run.name}: ${run.words || (run.step ? `${run.status}, step ${run.step} of ${run.steps}` : 'starting')}`;

function showResults(told) {
  byId('none').hidden = told.table.length > 0 || told.pictures.length > 0;
  byId('table').hidden = told.table.length === 0;
  const head = make('tr', {}, ...['', ...names, 'better', 'meaning'].map((text) => make('th', { scope: 'col', class: text, text })));
  const rows = told.table.map(({ title, values, better, meaning }) => make('tr', {},
    make('th', { scope: 'row', text: title }),
    ...values.map((text, place) => make('td', { text, class: better === names[place] ? 'better' : '' })),
    make('td', { text: better }),
    make('td', { class: 'meaning', text: meaning })));
  byId('table').replaceChildren(make('table', {}, make('thead', {}, head), make('tbody', {}, ...rows)));
  byId('pictures').replaceChildren(...told.pictures.map(({ title, image }) => make('figure', {},
    make('figcaption', { text: title }), make('img', { src: image, alt: `${title} of A and B` }))));
  const lines = told.timelines.map(({ title, image, words }) => make('figure', {},
    make('figcaption', { text: `Timeline of ${title}: ${words}` }),
    make('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': `Timeline of ${title}, scrolls` },
      make('img', { src: image, alt: words }))));
  if (told.no_timeline) lines.push(make('p', { class: 'note', text: told.no_timeline }));
  byId('timelines').replaceChildren(...lines);
}

byId('run').addEventListener('click', run);
byId('cancel').addEventListener('click', () => send('cancel', {}).catch(lost));
names.forEach(makeSide);
plan();
look();
})();
