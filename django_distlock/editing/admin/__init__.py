"""Edit locks in Django's admin."""
