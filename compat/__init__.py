"""Names that other libraries do not promise to keep, one file a library or a part of one.

Each has a test in tests/compat/ that says in a sentence what broke; `make newest` runs those with the newest
versions, and `make oldest` with the lowest ones.
"""
