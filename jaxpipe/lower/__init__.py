"""From a schedule to a program: ticks, buffer slots, integer tables, predictions. Pure Python."""

from jaxpipe.lower.pools import Pool as Pool
from jaxpipe.lower.program import Program as Program
from jaxpipe.lower.program import lower as lower
from jaxpipe.lower.table import UNWANTED as UNWANTED
from jaxpipe.lower.table import Column as Column
from jaxpipe.lower.table import TableSizes as TableSizes
from jaxpipe.lower.table import encode as encode
from jaxpipe.lower.ticks import TickForm as TickForm
