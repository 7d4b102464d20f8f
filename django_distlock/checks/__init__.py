"""System checks. apps.py registers them; each module is imported when one of its checks runs."""
