"""Requests, responses, forms, and clients that disconnect."""
