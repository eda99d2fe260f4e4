"""Imported by the fork server of tests: worker processes find the digits in memory, and need not read them."""

from paceline.tasks.data.bundled import arrays_of

arrays_of("load_digits")
