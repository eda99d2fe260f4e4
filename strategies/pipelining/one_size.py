from ...conf.errors import ConfigError

"""Micro-batches of one size, for engines of others that take no other."""


def micro_sizes(batch_size: int, micro_batches: int) -> list[int]:
    """As many as there can be, up to `micro_batches`: an odd last batch has fewer."""
    m = max(m for m in range(1, min(micro_batches, batch_size) + 1) if batch_size % m == 0)
    return [batch_size // m] * m


def check(strategy: str, batch_size: int, micro_batches: int) -> None:
    """Raises `ConfigError` where a batch is no multiple of `micro_batches`."""
    if batch_size % micro_batches:
        raise ConfigError(
            f"strategy.micro_batches={micro_batches}: strategy={strategy} wants micro-batches of one "
            f"size, and batch_size={batch_size} is no multiple of it. Choose "
            f"strategy.micro_batches={len(micro_sizes(batch_size, micro_batches))}, or strategy=pipeline."
        )
