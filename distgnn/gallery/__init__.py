"""Generated graphs: awkward shapes for tests, and R-MAT, planted-partition and road-like graphs of any size."""

from distgnn.gallery.awkward_shapes import awkward

__all__ = ["awkward"]
