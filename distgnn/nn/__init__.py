"""Networks on top of the distributed operators: layers, loss and optimisers."""

from distgnn.nn import reference
from distgnn.nn.custom import CustomLayer
from distgnn.nn.finite import NotFiniteError
from distgnn.nn.gat import GAT
from distgnn.nn.gatv2 import GATv2
from distgnn.nn.gcn import GCN
from distgnn.nn.loss import Targets, binary_cross_entropy, softmax_cross_entropy
from distgnn.nn.metrics import accuracies, macro_rocauc, micro_f1
from distgnn.nn.networks import NETWORKS
from distgnn.nn.optim import SGD, Adam, AdamW, Optimizer
from distgnn.nn.sage import SageMean

__all__ = [
    "GAT", "GCN", "NETWORKS", "SGD", "Adam", "AdamW", "CustomLayer", "GATv2", "NotFiniteError",
    "Optimizer", "SageMean", "Targets", "accuracies", "binary_cross_entropy", "macro_rocauc", "micro_f1",
    "reference", "softmax_cross_entropy",
]  # fmt: skip
