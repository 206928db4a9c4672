"""How big and where: which schedule to run, before anything is compiled. Pure Python."""

from jaxpipe.plan.best import Best as Best
from jaxpipe.plan.best import best as best
from jaxpipe.plan.compare import compare as compare
from jaxpipe.plan.evaluate import Evaluation as Evaluation
from jaxpipe.plan.evaluate import evaluate as evaluate
from jaxpipe.plan.table import to_table as to_table
