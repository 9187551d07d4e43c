"""Everything for tests on several ranks is in mpi_helpers/plugin.py."""

pytest_plugins = ["mpi_helpers.plugin"]
