"""How big and where: which schedule to run, before anything is compiled. Pure Python."""

from jaxpipe.plan.best import Best as Best
from jaxpipe.plan.best import best as best
from jaxpipe.plan.compare import compare as compare
from jaxpipe.plan.evaluate import Evaluation as Evaluation
from jaxpipe.plan.evaluate import evaluate as evaluate
from jaxpipe.plan.partition import Partition as Partition
from jaxpipe.plan.partition import partition as partition
from jaxpipe.plan.slice_cost import SliceCost as SliceCost
from jaxpipe.plan.slice_cost import fit_cost as fit_cost
from jaxpipe.plan.slice_cost import parse_cost as parse_cost
from jaxpipe.plan.slice_cost import read_cost_table as read_cost_table
from jaxpipe.plan.slices import BatchPlan as BatchPlan
from jaxpipe.plan.slices import SlicePlan as SlicePlan
from jaxpipe.plan.slices import SliceProblem as SliceProblem
from jaxpipe.plan.slices import equal_splits as equal_splits
from jaxpipe.plan.slices import plan_batch as plan_batch
from jaxpipe.plan.slices import plan_slices as plan_slices
from jaxpipe.plan.table import slices_table as slices_table
from jaxpipe.plan.table import to_table as to_table
