"""The browser lock manager."""
