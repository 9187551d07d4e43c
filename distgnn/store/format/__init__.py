"""What the files of a store look like: manifest, HDF5 files, shards, and how a directory appears whole."""
