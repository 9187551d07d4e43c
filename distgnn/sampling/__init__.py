"""Matrix-based sampling of minibatches (matrix-sampling paper)."""
