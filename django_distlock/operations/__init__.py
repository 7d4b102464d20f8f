"""Tools for operators: commands, the admin page, the doctor, history, metrics."""
