"""What a run will cost, before any rank of it is started."""

from distgnn.plan.dry_run import Costs, DryRun, count, dry_run
from distgnn.plan.graphs import Graph, Histogram, Known

__all__ = ["Costs", "DryRun", "Graph", "Histogram", "Known", "count", "dry_run"]
