"""The error of a bad configuration."""


class ConfigError(ValueError):
    """The configuration is wrong. The message says `KEY=VALUE: what is wrong. Choose X.`"""

    exit_code = 2
