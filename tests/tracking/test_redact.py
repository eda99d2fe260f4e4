import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.tracking import redact as redact_module
from paceline.tracking.redact import hide_known, know_secrets, redact, shown

SECRET_KEYS = [
    "key",
    "token",
    "password",
    "secret",
    "api_key",
    "apiKey",
    "APIKey",
    "api_keys",
    "wandb-api-key",
    "HF_TOKEN",
    "hfToken",
    "db.password",
    "client_secret",
    "aws_secret_access_key",
    "credentials",
    "passwd",
    "api_key2",
    "password_1",
    "accesstoken",
    "authToken2",
    "dbpassword",
    "secretkey",
    "pwd",
]
PLAIN_KEYS = ["monkey", "keyboard", "max_tokens", "token_count", "tokenizer", "keys", "secretary", "steps", "hotkey"]


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_the_value_of_a_secret_key_is_hidden_at_any_depth(key):
    assert redact({key: "x"}) == {key: "***"}
    assert redact({"a": [[{"b": {key: "x"}}]]}) == {"a": [[{"b": {key: "***"}}]]}
    assert redact({key: {"inner": "x"}}) == {key: "***"}


@pytest.mark.parametrize("key", PLAIN_KEYS)
def test_a_key_that_only_resembles_a_secret_keeps_its_value(key):
    assert redact({key: "x"}) == {key: "x"}


def test_an_unset_secret_stays_unset_so_that_a_reader_can_tell():
    assert redact({"api_key": None}) == {"api_key": None}


def test_the_login_in_a_url_is_hidden_and_the_rest_of_the_url_kept():
    assert redact({"urls": ["https://me:pass@host/path", "https://host/@me"]}) == {
        "urls": ["https://***@host/path", "https://host/@me"]
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://host/name?nosuchoption=hunter2", "postgresql://host/name?nosuchoption=***"),
        ("postgresql://me:pw@host/name?a=hunter2&b=hunter2#x", "postgresql://***@host/name?a=***&b=***#x"),
        (
            "see https://host/?q=hunter2 and https://other/?q=hunter2",
            "see https://host/?q=*** and https://other/?q=***",
        ),
        ("what?a=b is no URL", "what?a=b is no URL"),
        ("postgresql://me:hun/ter2@host/name", "postgresql://***@host/name"),
        ("postgresql://me:hun?t#er2@host/name?a=b", "postgresql://***@host/name?a=***"),
        ("http://me:hun@ter2@host:80/@me", "http://***@host:80/@me"),
        ("http://me:h/un@ter2@host", "http://***@host"),
        ("https://host:8080/@me", "https://host:8080/@me"),
        ("https://host/a:b@me", "https://host/a:b@me"),
        ("https://host/#token=hunter2", "https://host/#token=***"),
        ("https://host/path?flag", "https://host/path?flag"),
    ],
)
def test_every_value_of_a_urls_query_is_hidden(text, shown):
    assert redact({"url": text}) == {"url": shown}


def test_the_configuration_given_is_not_changed():
    config = {"a": {"token": "x"}}
    redact(config)
    assert config == {"a": {"token": "x"}}


@pytest.fixture
def no_secrets_known(monkeypatch):
    monkeypatch.setattr(redact_module, "_known", set())


def test_a_known_secret_is_hidden_in_any_text(no_secrets_known):
    know_secrets(
        {
            "data": {"knobs": {"db_password": "hunter2", "pin_key": 4711, "mode": "plain"}},
            "list": [[{"api_key": ["abcde"]}]],
        }
        | {"pad_token": 50256, "token": None, "key": "x"}
    )
    text = "mode plain, hunter2 and abcde are not 4711 or 50256, x: postgresql://me:pw@host"
    assert hide_known(text) == "mode plain, *** and *** are not *** or 50256, x: postgresql://***@host"


def test_a_message_shows_a_value_as_it_is_unless_it_has_a_secret():
    assert shown("data.size", (1, 2)) == (1, 2)
    assert shown("data.api_key", "x") == "***"
    assert shown("data", {"api_key": "x", "size": 1}) == {"api_key": "***", "size": 1}


@given(
    st.recursive(
        st.none() | st.integers() | st.text(alphabet="abc"),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", "b", "steps"]), inner),
    )
)
def test_a_configuration_without_secrets_is_unchanged(value):
    assert redact({"a": value}) == {"a": value}
