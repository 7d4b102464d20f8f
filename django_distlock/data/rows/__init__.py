"""Row locks."""
