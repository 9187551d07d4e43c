"""The graph convolutional network on top of the distributed operators: layers, loss, optimisers, training
loop.
"""

from distgnn.gcn.loss import Targets, accuracies, softmax_cross_entropy
from distgnn.gcn.model import GCN
from distgnn.gcn.optim import SGD, Adam, AdamW, Optimizer
from distgnn.gcn.sage import SageMean
from distgnn.gcn.training import train

__all__ = [
    "GCN", "SGD", "Adam", "AdamW", "Optimizer", "SageMean", "Targets",
    "accuracies", "softmax_cross_entropy", "train",
]  # fmt: skip
