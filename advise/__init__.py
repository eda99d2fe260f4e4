"""Finds the best configuration for the hardware and its cost: enumerates, prunes, predicts, ranks and, if asked, races.

question.py       what is asked: the configuration, what is fixed in it, samples of a step, limits of money and time
hugging_face.py   the model of a config.json as overrides
imported.py       a configuration of another tool as overrides; formats.py writes what it reads
candidate.py      one way to train, as it would be typed, and what is predicted of it; commands.py: as a line to copy
space.py, cut.py  every layout of a GPT over accelerators, and why others cannot be
memory.py         what a device and a host need for each, by closed forms; sent.py: what a worker sends
accelerators.py   how long each takes
modes.py          what there is to choose from where no closed form is known: strategies, sync modes, compressors
plans.py          a configuration planned exactly: what is shown, and all where no closed form is known
ranking.py        orders, the Pareto front, the best of each group; why_not.py: the rest of each family
none.py           why there is no line to show; nearest.py: what would fit
recommend.py      what limits the best, why the next best loses, and one thing to try
answer.py         all of it put together; explain.py: where the time goes, and what would help most
"""
