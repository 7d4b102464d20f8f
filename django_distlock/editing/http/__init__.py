"""Edit locks and requests: beats, the hidden fields, the guard of a save, the form of a refused one."""
