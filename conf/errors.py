"""What a configuration cannot be."""


class ConfigError(ValueError):
    """The configuration is wrong. The message says `KEY=VALUE: what is wrong. Choose X.`"""

    exit_code = 2
