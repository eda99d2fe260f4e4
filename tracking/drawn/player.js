// Turns each strip of pictures (player.py) into an animation: what has a data- attribute moves. Times are microseconds.
(() => {
  'use strict';
  const still = matchMedia('(prefers-reduced-motion: reduce)');

  // The last of `samples` by then, whose time is at `place`; undefined before the first.
  function last(samples, at, place) {
    let low = 0, high = samples.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (samples[middle][place] <= at) low = middle + 1; else high = middle;
    }
    return samples[low - 1];
  }

  function byLane(samples) {
    const found = {};
    for (const each of samples) (found[each[0]] ||= []).push(each);
    return found;
  }

  // As Python's format(value, ".3g").
  function short(value) {
    const number = Number(value.toPrecision(3)), size = Math.abs(number);
    return (size >= 1e-4 && size < 1e3) || number === 0 ? String(number)
      : number.toExponential().replace(/e([+-])(\d)$/, 'e$10$2');
  }

  // Each function returned by `movers` takes a time and moves one kind of thing.
  function movers(stage, data) {
    const {layout, held, messages} = data, all = (name) => [...stage.querySelectorAll(`[data-${name}]`)];
    const lanes = held.map((track) => byLane(track.samples));
    const spans = byLane(data.spans);
    const key = (element, name) => element.dataset[name].split(':').map(Number);
    const of = (place, lane) => lane < 0 ? held[place].samples : lanes[place][lane] || [];
    const now = (at, place, lane) => last(of(place, lane), at, 1);
    const found = [];

    const marks = all('mark');
    for (const box of all('state')) {
      const lane = Number(box.dataset.state), own = spans[lane] || [], mark = marks[lane];
      found.push((at) => {
        const span = last(own, at, 1), kind = span && at < span[2] ? span[3] : null;
        box.setAttribute('class', kind === null ? 'void' : layout.classes[kind]);
        mark.textContent = kind === null ? '' : layout.marks[kind];
      });
    }
    for (const bar of all('bar')) {
      const [place, lane] = key(bar, 'bar');
      const text = stage.querySelector(`[data-number="${place}:${lane}"]`);
      found.push((at) => {
        const sample = now(at, place, lane), value = sample ? sample[2] : 0;
        bar.setAttribute('width', (layout.bar * Math.abs(value) / layout.numbers[place]).toFixed(2));
        text.textContent = short(value);
      });
    }
    for (const cell of all('cell')) {
      const [place, lane, number] = key(cell, 'cell');
      const text = stage.querySelector(`[data-text="${place}:${lane}:${number}"]`);
      found.push((at) => {
        const sample = now(at, place, lane);
        cell.setAttribute('fill-opacity', (sample ? 0.6 * sample[3][number] : 0).toFixed(2));
        if (text) text.textContent = sample ? sample[2][number] : '';
      });
    }

    for (const line of all('bound')) {
      const [place, , left] = key(line, 'bound'), {within} = held[place], most = layout.numbers[place];
      found.push((at) => {
        const own = Object.values(lanes[place]).map((samples) => (last(samples, at, 1) || [0, 0, 0])[2]);
        const x = left + layout.bar * Math.min(Math.min(...own) + within, most) / most;
        line.setAttribute('x1', x.toFixed(2));
        line.setAttribute('x2', x.toFixed(2));
      });
    }

    const spots = {}, points = all('point'), [x0, y0, k] = layout.plane;
    const mean = (values) => values.reduce((sum, each) => sum + each, 0) / values.length;
    if (points.length) found.push((at) => {  // the workers' mean is in the middle
      const places = points.map((point) => {
        const own = of(...key(point, 'point'));
        return (last(own, at, 1) || own[0]).slice(2);
      });
      const workers = places.filter((_, i) => points[i].dataset.worker === '1');
      const [mx, my] = [0, 1].map((i) => mean((workers.length ? workers : places).map((each) => each[i])));
      points.forEach((point, i) => {
        const spot = [x0 + k * (places[i][0] - mx), y0 - k * (places[i][1] - my)];
        spots[point.dataset.point] = spot;
        point.setAttribute('transform', `translate(${spot[0].toFixed(2)} ${spot[1].toFixed(2)})`);
      });
    });
    for (const tie of all('tie')) {
      const [one, other] = tie.dataset.tie.split(' ');
      found.push(() => {
        ['x1', 'y1'].forEach((name, i) => tie.setAttribute(name, spots[one][i].toFixed(2)));
        ['x2', 'y2'].forEach((name, i) => tie.setAttribute(name, spots[other][i].toFixed(2)));
      });
    }
    for (const group of all('rows')) {
      const track = held.find((each) => each.kind === 'rows'), [x0, y0, k] = layout.rows;
      found.push((at) => {
        const sample = last(track.samples, at, 1);
        if (!sample) { group.innerHTML = ''; return; }
        const [x, y] = sample[3];
        group.innerHTML = sample[2].map(([worker, a, b, picked, apart]) =>
          `<g transform="translate(${(x0 + k * a).toFixed(2)} ${(y0 - k * b).toFixed(2)})"><circle class="c${apart ? 1 : 0}" r="7" `
          + `fill-opacity="0.55"></circle>${picked ? '<circle class="dark strong" r="10"></circle>' : ''}`
          + `<text class="small" y="4" text-anchor="middle">${Number(worker)}</text></g>`).join('')
          + `<path class="dark strong" d="M${(x0 + k * x).toFixed(2)},${(y0 - k * y).toFixed(2)} m-6,0 h12 m-6,-6 v12">`
          + '</path>';
      });
    }

    const [arcs] = all('arcs');
    const longest = Math.max(0, ...messages.map(([, , left, came]) => came - left));
    const sorted = [...messages].sort((one, other) => one[2] - other[2]);
    found.push((at) => {
      let drawn = '';
      for (let i = sorted.indexOf(last(sorted, at, 2)); i >= 0 && sorted[i][2] >= at - longest; i--) {
        if (sorted[i][2] < at && at <= sorted[i][3]) drawn = arc(sorted[i], at, layout) + drawn;
      }
      arcs.innerHTML = drawn;
    });

    all('now').forEach((line) => {
      const place = Number(line.dataset.now), curve = data.curves[place], [left, wide] = layout.curve;
      const text = stage.querySelector(`[data-curve="${place}"]`);
      found.push((at) => {
        const x = (left + wide * at / (data.end || 1)).toFixed(2), value = last(curve.samples, at, 0);
        line.setAttribute('x1', x);
        line.setAttribute('x2', x);
        text.textContent = `${curve.name}: ${value ? short(value[1]) : ''}`;
      });
    });
    return found;
  }

  function arc([source, to, left, came], at, {row, top, arcs, reach}) {
    const wide = 8 + reach * Math.abs(source - to) * 0.85, bend = (arcs + wide).toFixed(2);
    const [start, end] = [source, to].map((lane) => top + row * lane + row / 2), s = (at - left) / (came - left);
    const x = arcs + wide * 3 * s * (1 - s);
    const y = start * (1 - s) ** 2 * (1 + 2 * s) + end * s ** 2 * (3 - 2 * s);
    return `<path class="dark" stroke-opacity="0.45" d="M${arcs},${start.toFixed(2)} C${bend},${start.toFixed(2)} `
      + `${bend},${end.toFixed(2)} ${arcs},${end.toFixed(2)}"></path>`
      + `<circle class="head" cx="${x.toFixed(2)}" cy="${y.toFixed(2)}" r="3"></circle>`;
  }

  function button(words, label, act) {
    const made = document.createElement('button');
    made.type = 'button';
    made.textContent = words;
    made.setAttribute('aria-label', label);
    made.addEventListener('click', act);
    return made;
  }

  function copied(svg) {  // with ids of its own
    const copy = svg.cloneNode(true);
    copy.innerHTML = copy.innerHTML.replace(/( id="|url\(#)([\w-]+)/g, '$1$2-stage');
    return copy;
  }

  function begin(player) {
    const data = JSON.parse(player.querySelector('script').textContent);
    const strip = player.querySelector('.strip'), times = data.moments.map(([at]) => at);
    const stage = document.createElement('div'), said = document.createElement('output');
    stage.className = 'stage';
    stage.append(...[...strip.querySelector('figure').querySelectorAll('svg')].map(copied));
    const move = movers(stage, data), whole = Math.min(Math.max(times.length * 0.6, 8), 60);  // s at speed 1
    let at = 0, timer = null, before = 0, waited = 0;

    const slider = document.createElement('input');
    Object.assign(slider, {type: 'range', min: 0, max: data.end, step: 'any', value: 0});
    slider.setAttribute('aria-label', 'Time');
    const speed = document.createElement('select');
    speed.setAttribute('aria-label', 'Speed');
    for (const each of [0.25, 0.5, 1, 2, 4]) speed.add(new Option(`${each}x`, each, each === 1, each === 1));
    const play = button('Play', 'Play', () => timer === null ? start() : stop());

    function show(time) {
      at = Math.min(Math.max(time, 0), data.end);
      for (const each of move) each(at);
      slider.value = at;
      const text = (data.timed ? `${short(at / 1e3)} ms: ` : '') + last(data.moments, at, 0)[1];
      slider.setAttribute('aria-valuetext', text);
      said.textContent = text;
    }

    function step(by) {
      stop();
      const place = times.indexOf(last(data.moments, at, 0)[0]);
      show(by > 0 ? times[place + 1] ?? data.end : at > times[place] ? times[place] : times[Math.max(place - 1, 0)]);
    }

    function start() {
      if (at >= data.end) show(0);
      said.setAttribute('aria-live', 'off');
      play.textContent = 'Pause';
      play.setAttribute('aria-label', 'Pause');
      before = performance.now();
      waited = 0;
      timer = requestAnimationFrame(frame);
    }

    function stop() {
      if (timer !== null) cancelAnimationFrame(timer);
      timer = null;
      said.setAttribute('aria-live', 'polite');
      play.textContent = 'Play';
      play.setAttribute('aria-label', 'Play');
    }

    function frame(time) {
      const passed = Math.max(time - before, 0) / 1e3 * speed.value;
      before = time;
      if (still.matches) {  // from moment to moment, and nothing glides
        waited += passed;
        if (waited >= 1) {
          waited = 0;
          show(times.find((each) => each > at) ?? data.end);
        }
      } else {
        show(at + data.end * passed / whole);
      }
      if (at < data.end) timer = requestAnimationFrame(frame); else stop();
    }

    const act = {
      ' ': () => timer === null ? start() : stop(),
      ArrowRight: () => step(1), ArrowLeft: () => step(-1),
      Home: () => { stop(); show(0); }, End: () => { stop(); show(data.end); },
    };
    player.tabIndex = 0;
    player.setAttribute('role', 'group');
    player.addEventListener('keydown', (event) => {
      const own = event.target.tagName;
      if (event.altKey || event.ctrlKey || event.metaKey || !act[event.key] || own === 'SELECT') return;
      if (event.key === ' ' && own === 'BUTTON') return;
      event.preventDefault();
      act[event.key]();
    });
    slider.addEventListener('input', () => { stop(); show(Number(slider.value)); });

    const buttons = document.createElement('div');
    buttons.className = 'buttons';
    buttons.append(button('Back', 'Step back', () => step(-1)), play, button('Step', 'Step', () => step(1)), slider, speed);
    const folded = document.createElement('details'), summary = document.createElement('summary');
    summary.textContent = 'Key moments';
    strip.replaceWith(buttons, said, stage, folded);
    folded.append(summary, strip);
    addEventListener('beforeprint', () => { folded.open = true; });
    stop();
    show(0);
  }

  for (const player of document.querySelectorAll('.player')) begin(player);
})();
