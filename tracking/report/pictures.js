// Sections of pictures in SVG. They are images: nothing in them becomes part of the page.
function buildPictures() {
  for (const part of report.pictures) {
    const title = make('h2', [['id', `${part.id}-title`]], part.title);
    const section = make('section', [['id', part.id], ['aria-labelledby', title.id]], title);
    for (const figure of part.figures) {
      const images = figure.pictures.map(({ alt, source }) => make('img', [['class', 'schedule'], ['alt', alt], ['src', source], ['loading', 'lazy']]));
      const says = make('p', [['class', 'note']], bdi(figure.name), `. ${figure.says}`);
      section.append(make('div', [['role', 'figure'], ['aria-label', figure.name]], ...inSight(figure.name, images), says)); // <figure> has a plot
    }
    if (part.note) section.append(make('p', [['class', 'note']], part.note));
    document.getElementById('difference').before(section);
  }
}

// Pictures that stay legible on a telephone: there they scroll, by keyboard, too.
function inSight(name, images) {
  const area = [['class', 'pictures'], ['tabindex', '0'], ['role', 'group'], ['aria-label', `${name}, pictures`]];
  return images.length ? [make('div', area, ...images)] : [];
}
