"""The figures: what each shows is said once (spec.py, built.py), and drawn by pictures.py and by the report."""
