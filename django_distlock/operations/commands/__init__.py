"""The subcommands of ``manage.py distlock``, which ``management/commands/distlock.py`` lists."""
