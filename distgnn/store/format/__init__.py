"""The format of a store: manifest, HDF5 files, shards, and directories that appear whole."""
