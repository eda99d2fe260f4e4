"""A number with its noun, for messages."""


def counted(number: int, thing: str) -> str:
    """Give the number with `thing`, a noun in the singular: "1 run", "2,000 losses"."""
    if number == 1:
        return f"1 {thing}"
    return f"{number:,} {thing}{'es' if thing.endswith('s') else 's'}"
