"""The one function by which OmegaConf finds a resolver."""

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import UnsupportedInterpolationType

from paceline.compat.omegaconf import no_resolvers


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
