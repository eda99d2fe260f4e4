"""The runs whose curves stand out of a crowd: those of the first two settings of the ranking."""

from statistics import fmean

from .spec import Lines, Ranking, Sheet

CROWD = 5  # settings: the curves of more overlap
PAIR = 2  # settings that stand out of a crowd


def leading(sheet: Sheet, figure: Lines) -> frozenset[int]:
    """Returns the places of the runs that stand out; none where all look alike, as few curves do.

    The ranking is the first of the sheet, by the means of seeds. A setting without a rank never stands out.
    """
    drawn = {line.run for line in figure.lines}
    settings = [tuple(place for place in setting.runs if place in drawn) for setting in sheet.settings]
    settings = [members for members in settings if members]
    rankings = [each for section in sheet.sections for each in section.figures if isinstance(each, Ranking)]
    if len(settings) <= CROWD or not rankings:
        return frozenset()
    values = {
        place: value
        for each in rankings
        if each.name == rankings[0].name
        for place, value, is_ranked in zip(each.runs, each.values, each.ranked, strict=True)
        if is_ranked and value is not None
    }
    ranked = [members for members in settings if all(place in values for place in members)]
    ranked.sort(key=lambda members: fmean(values[place] for place in members), reverse=rankings[0].larger)
    return frozenset(place for members in ranked[:PAIR] for place in members)
