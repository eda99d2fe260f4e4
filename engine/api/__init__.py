"""The functions that Python and the commands call: sessions, results, comparisons, advice."""
