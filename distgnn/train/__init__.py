"""Training runs: settings, loops over epochs and minibatches, logs, checkpoints."""

from distgnn.train.export import export_weights
from distgnn.train.full_graph import train
from distgnn.train.minibatch import MinibatchTraining
from distgnn.train.minibatches import Minibatches
from distgnn.train.predict import Predictor
from distgnn.train.run import Run
from distgnn.train.settings import Settings

__all__ = ["MinibatchTraining", "Minibatches", "Predictor", "Run", "Settings", "export_weights", "train"]
