"""A history of one fenced table for the tests of EnforceFence; they put it in the place of dataapp's migrations."""
