"""A page on which a person compares two configurations: plans them, runs both, and looks at them side by side."""
