"""Training runs: settings, loops over epochs and minibatches, logs, checkpoints.

Names are imported on first use, so that the flags of ``distgnn train --help`` need neither MPI nor NumPy.
"""

from distgnn import lazy

__getattr__, __dir__, __all__ = lazy.names(__name__, __file__)
