"""System checks. ``ready()`` in apps.py imports them, which registers them."""
