"""Each column of a comparison is explained."""

from paceline.tracking.columns import COLUMNS
from paceline.tracking.glossary import MEANINGS, glossary


def test_every_column_has_a_meaning_and_every_meaning_a_column() -> None:
    assert set(MEANINGS) == {column.key for column in COLUMNS}
    assert all(meaning for _, meaning in MEANINGS.values())
    assert [row[0] for row in glossary()] == [column.title for column in COLUMNS]
