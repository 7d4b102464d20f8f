"""The lock manager of one process: who holds, who waits, who is notified."""
