"""Energy and what it emits, against the figures of Patterson et al. 2021."""

import pytest

from paceline.cost.energy import PUE, TDP, UTILISATION, WORLD, kg_co2e, kwh_of
from paceline.cost.rules import RULES, CostError


def test_gpt3_is_what_patterson_says() -> None:
    """10,000 V100 of 330 W for 14.8 days at a PUE of 1.10 are 1,287 MWh, at 0.429 kg/kWh 552 t."""
    kwh = kwh_of(14.8 * 24, 10_000, 330, 1.0, 1.10)
    assert kwh == pytest.approx(1_287_000, rel=0.005)  # 14.8 days are rounded
    assert kg_co2e(kwh, 0.429) == pytest.approx(552_000, rel=0.005)


def test_one_kilowatt_for_an_hour_is_a_kilowatt_hour() -> None:
    assert kwh_of(1, 1, 1000, 1.0, 1.0) == 1.0
    assert kwh_of(2, 3, 1000, 0.5, 1.5) == pytest.approx(4.5)
    assert kg_co2e(10, 0.2) == 2.0


@pytest.mark.parametrize("figure", [PUE, WORLD, UTILISATION, *TDP.values()], ids=lambda figure: figure.source[:20])
def test_every_figure_keeps_its_rule_and_says_where_it_is_from(figure) -> None:
    assert RULES[figure.name].holds(figure.value)
    assert figure is UTILISATION or any(str(year) in figure.source for year in range(2015, 2027))


def test_a_data_centre_draws_no_less_than_its_computers() -> None:
    with pytest.raises(CostError, match=r"pue=0.9: must be at least 1"):
        kwh_of(1, 1, 100, 1.0, 0.9)
    with pytest.raises(CostError, match=r"utilisation=1.2: must be at least 1e-9 and at most 1"):
        kwh_of(1, 1, 100, 1.2, 1.1)
