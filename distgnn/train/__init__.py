"""Training runs: settings, loops over epochs and minibatches, logs, checkpoints.

Names are imported on first use, so that the flags of ``distgnn train --help`` need neither MPI nor NumPy.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
