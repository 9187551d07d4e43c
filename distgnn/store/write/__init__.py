"""From a Source to a store, in one process or by the ranks of a job that share a file system."""
