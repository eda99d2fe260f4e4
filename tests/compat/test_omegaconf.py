"""The functions by which OmegaConf finds a resolver, and what an interpolation of a key stands for."""

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import UnsupportedInterpolationType

from paceline.compat import omegaconf
from paceline.compat.omegaconf import TooManyInterpolationsError, no_resolvers


def test_resolvers_are_away_inside_and_back_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    config = OmegaConf.create(
        {"name": "env", "a": "${oc.env:MY_SECRET}", "b": "${oc.${name}:MY_SECRET}", "c": "${name}"}
    )
    with no_resolvers():
        for key in "ab":
            with pytest.raises(UnsupportedInterpolationType):
                config[key]
                pytest.fail("OmegaConf finds resolvers in another way: a configuration can read the environment")
        assert config.c == "env"
    assert config.a == config.b == "hunter2"


@pytest.mark.parametrize("nested", [False, True], ids=["text", "in a list"])
def test_interpolations_of_interpolations_are_bounded_inside(nested: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 200_000  # for speed
    monkeypatch.setattr(omegaconf, "MOST", most)
    texts = {"t0": "x" * 10, **{f"t{i}": f"${{t{i - 1}}}" * 20 for i in range(1, 6)}}
    config = OmegaConf.create({**texts, "all": ["${t5}"] if nested else "${t5}"})
    with no_resolvers(), pytest.raises(TooManyInterpolationsError, match=f"more than {most:,} characters"):
        OmegaConf.to_container(config, resolve=True)
        pytest.fail("OmegaConf finds what interpolations stand for in another way: a short text takes minutes")
    with no_resolvers():  # each composition has the whole bound
        for _ in range(3):
            assert len(config.t2) == 20**2 * 10
