"""Training runs: settings, loops over epochs and minibatches, logs, checkpoints."""

from distgnn.train.full_graph import train
from distgnn.train.minibatch import MinibatchTraining
from distgnn.train.minibatches import Minibatches
from distgnn.train.run import Run
from distgnn.train.settings import Settings

__all__ = ["MinibatchTraining", "Minibatches", "Run", "Settings", "train"]
