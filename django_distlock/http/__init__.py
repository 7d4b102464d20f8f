"""Requests of scripts, for all features with pages: the sender, the body, the transactions, the CSRF check."""
