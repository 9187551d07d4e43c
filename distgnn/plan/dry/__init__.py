"""Dry runs: the program of a run on arrays of shapes alone, among ranks that are not there.

A dry run enters the program by two doors: the backend of arrays without numbers, and communicators that
answer for absent ranks. ``shapes.py`` has the arrays, ``backend.py`` their backend and its kernels,
``graphs.py`` the graphs. ``ranks.py`` has communicators whose ranks all run, in turn; ``absent.py`` one whose
other ranks are taken to be like the one that runs; ``busiest.py`` says which that is; ``recorder.py``
keeps the steps of a program; ``run.py`` runs it.
"""
