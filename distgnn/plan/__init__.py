"""Plans: the cost of a run before any rank of it is started."""

from distgnn.plan.choices import Plan, plan
from distgnn.plan.dry.graphs import Graph, Histogram, Known
from distgnn.plan.dry.run import Costs, DryRun, count, dry_run
from distgnn.plan.settle import Settled, settle, settle_together

__all__ = [
    "Costs", "DryRun", "Graph", "Histogram", "Known", "Plan", "Settled", "count", "dry_run", "plan",
    "settle", "settle_together",
]  # fmt: skip
