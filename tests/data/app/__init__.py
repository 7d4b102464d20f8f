"""Models for the tests of data locks; without migrations, so the test databases get their tables from run_syncdb."""
