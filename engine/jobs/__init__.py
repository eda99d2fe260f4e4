"""Jobs: runs whose processes are started by a scheduler, not here.

Every scheduler starts the same command in each process, `paceline train --submitted RUN`, which adopts the run's
directory and meets the others over env:// variables (comm/rendezvous.py). `scheduler.py` has the interface and
`job.json`; `submission.py` submits and follows; `supervisor.py` runs inside the job.
"""
