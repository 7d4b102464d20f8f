"""The demo project: one app per scenario, and the settings the test suite uses as well."""
