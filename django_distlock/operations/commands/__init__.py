"""The subcommands of ``manage.py distlock``: each module with a class ``Command`` is one, of the module's name."""
