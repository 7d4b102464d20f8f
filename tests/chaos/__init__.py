"""`make chaos`: crews of processes under a lock of each engine, with faults at random, and what happened.

    python -m tests.chaos [--minutes 10] [--seed 7] [--engines redis,postgres]

Left out is what cannot be done to a machine that others use: steps of its clock, full disks. Fail-overs are in
tests/faults, since each server here is alone.
"""
