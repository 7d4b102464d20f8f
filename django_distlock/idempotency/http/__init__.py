"""Requests, responses, forms and the waiting page."""
