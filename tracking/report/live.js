// Only in a report that is served: asks whether a run has gone on, and loads the page again when one has.
(() => {
'use strict';
const SECONDS = 5;
const isBusy = () => ['INPUT', 'SELECT'].includes(document.activeElement.tagName);
async function look() {
  try {
    const answer = await fetch('state', { cache: 'no-store' });
    const state = await answer.json();
    if (state.version !== document.documentElement.dataset.version && !isBusy()) location.reload();
  } catch {
    return; // the server has ended; the page stays as it is
  }
  setTimeout(look, 1000 * SECONDS);
}
setTimeout(look, 1000 * SECONDS);
})();
