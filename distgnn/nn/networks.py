"""The networks that settings can name."""

from __future__ import annotations

from distgnn.nn.gat import GAT
from distgnn.nn.gatv2 import GATv2
from distgnn.nn.gcn import GCN
from distgnn.nn.sage import SageMean

#: By ``Settings.model``. Enter a network with layers of your own, ``NETWORKS["gin"] = GIN``, on all ranks:
#: runs, predictions and plans can name it then.
NETWORKS: dict[str, type[GCN]] = {"gcn": GCN, "sage": SageMean, "gat": GAT, "gatv2": GATv2}
