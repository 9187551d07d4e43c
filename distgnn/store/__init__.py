"""Graphs on disk: importers and generators give a `Source`, `prepare` makes a `Store` of it.

    format/     what files look like
    source      what a graph gives to `prepare`
    from_arrays one call from arrays in memory to a store
    importers/  from files to a Source
    read/       from a store to blocks
    write/      from a Source to a store
    checkpoint  the state of a run
    rules       the rules by which graphs are read
    stages      progress of long work

Names are imported on first use: reading and writing stores needs no MPI.
"""

from distgnn import lazy

__getattr__, __dir__, __all__ = lazy.names(__name__, __file__)
