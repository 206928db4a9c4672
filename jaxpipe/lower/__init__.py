"""From a schedule to a program: ticks, buffer slots, integer tables, predictions. Pure Python."""

from jaxpipe.lower.pools import Pool as Pool
from jaxpipe.lower.program import Packing as Packing
from jaxpipe.lower.program import Program as Program
from jaxpipe.lower.program import lower as lower
from jaxpipe.lower.table import UNWANTED as UNWANTED
from jaxpipe.lower.table import BackwardPass as BackwardPass
from jaxpipe.lower.table import Column as Column
from jaxpipe.lower.table import Forward as Forward
from jaxpipe.lower.table import StateColumns as StateColumns
from jaxpipe.lower.table import TableSizes as TableSizes
from jaxpipe.lower.table import encode as encode
from jaxpipe.lower.table import num_columns as num_columns
from jaxpipe.lower.ticks import Phase as Phase
from jaxpipe.lower.ticks import TickForm as TickForm
from jaxpipe.lower.ticks import phase_of as phase_of
from jaxpipe.lower.wires import Wire as Wire
from jaxpipe.lower.wires import has_turns as has_turns
from jaxpipe.lower.wires import wires_of as wires_of
