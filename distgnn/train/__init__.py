"""Training runs: settings, loops over epochs and minibatches, logs, checkpoints."""

from distgnn.train.full_graph import train
from distgnn.train.minibatch import MinibatchTraining
from distgnn.train.minibatches import Minibatches

__all__ = ["MinibatchTraining", "Minibatches", "train"]
