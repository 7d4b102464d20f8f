"""Browser locks: one lock across tabs, workers and devices. See docs/browser/."""
