"""Compile for accelerators one does not have: does a run fit, and what does it send around?"""

from jaxpipe.aot.chips import CHIPS as CHIPS
from jaxpipe.aot.chips import Chip as Chip
from jaxpipe.aot.collectives import Collective as Collective
from jaxpipe.aot.collectives import Send as Send
from jaxpipe.aot.report import DoesNotFitError as DoesNotFitError
from jaxpipe.aot.report import Report as Report
from jaxpipe.aot.report import compile_for as compile_for
from jaxpipe.aot.report import memory_refused as memory_refused
from jaxpipe.aot.topology import MissingCompilerError as MissingCompilerError
from jaxpipe.aot.topology import Topology as Topology
from jaxpipe.aot.topology import parse_topology as parse_topology
