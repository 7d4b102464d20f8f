"""What users hold: locks, leases, sets of locks, semaphores, decorators, leaders."""
