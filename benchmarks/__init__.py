"""What a lock costs, side by side with the bare drivers and with other libraries: ``python -m benchmarks``.

Every figure that counts is a ratio taken within one run; absolute times depend on the machine. README.md beside this
file says how to read them.
"""
