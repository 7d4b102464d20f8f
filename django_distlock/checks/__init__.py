"""System checks. ``register()`` in apps.py imports them."""
