// A pipeline's schedule, modelled and measured. Its pictures are images: nothing in them becomes part of the page.
function buildSchedules() {
  if (!report.schedules.length) return;
  const title = make('h2', [['id', 'schedules-title']], 'Schedules: modelled and measured');
  const section = make('section', [['id', 'schedules'], ['aria-labelledby', title.id]], title);
  for (const schedule of report.schedules) {
    const images = schedule.pictures.map((source, i) => (
      make('img', [['class', 'schedule'], ['alt', i ? 'Measured schedule' : 'Modelled schedule'], ['src', source]])
    ));
    const says = make('figcaption', null, bdi(schedule.name), `. ${schedule.says}`);
    section.append(make('figure', null, ...inSight(schedule.name, images), says));
  }
  document.getElementById('difference').before(section);
}

