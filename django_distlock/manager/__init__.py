"""The lock manager of one process: its holders, its waiters and its notifications."""
