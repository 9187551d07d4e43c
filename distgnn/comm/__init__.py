"""Communication: groups of ranks, messages under way, panels, sums, rows, and the grid."""
