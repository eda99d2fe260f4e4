"""`make predictions ARGS="FOLDER"`: step times and memory that others measured and published, beside our prediction.

FOLDER has runs.csv (a run a row: shape of the model, degrees, batch, devices, step time or throughput, memory) and
hardware.csv (collectives and products); nobody here ran any of them. The constants of `paceline.cost` were fitted on
hardware.csv and on the rows of one group that rows.py names; these are scored apart. Every other row is scored, or the
reason why it is not is counted. Two baselines stand beside it: one constant efficiency for a group, the best one, found
on the very rows that it is scored on; and the same with a pipeline's bubble.
"""
