"""Everything that we know to go wrong, done to paceline on purpose and in numbers: `make faults`."""
