"""Table locks, row locks and fenced writes."""
