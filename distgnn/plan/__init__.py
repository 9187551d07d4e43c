"""What a run will cost, before any rank of it is started."""

from distgnn.plan.dry_run import Costs, DryRun, count, dry_run
from distgnn.plan.graphs import Graph, Histogram, Known
from distgnn.plan.settle import Settled, settle, settle_together

__all__ = [
    "Costs", "DryRun", "Graph", "Histogram", "Known", "Settled", "count", "dry_run", "settle",
    "settle_together",
]  # fmt: skip
