"""Browser locks and requests: the addresses that distlock.js asks, and the stream of events."""
