"""One worker of a run: its loop, its measures, its evaluations, what it saves and reports."""
