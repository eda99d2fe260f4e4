"""Side-by-side ratios against what a user would pick instead: `make bench`."""
