"""Faults that are put into the library one at a time: the tests must notice each of them.

    make mutants                     # all of them
    make mutants ARGS="-k redis"     # those whose title, rule or file has the word

Each fault is one small replacement in a file of the package, made in a temporary copy of the tree. The tests that are
named with it then run there, on the servers of this checkout. A fault that no test notices is a missing test.
"""
