"""`make chaos`: crews of processes under a lock of each engine, with faults at random, and a table of what happened.

    python -m tests.chaos [--minutes 10] [--seed 7] [--engines redis,postgres]

The workers, the oracle of the kernel and the history are those of tests/faults. What cannot be done to a machine that
others use (steps of its clock, full disks) is left out, and the table says so.
"""
