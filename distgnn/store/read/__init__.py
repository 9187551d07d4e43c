"""From a store to blocks: windows of the matrix, rows of node arrays, facts, and operators on a grid."""
