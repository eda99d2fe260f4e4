"""What Python and the commands call: sessions, results, comparisons, advice."""
