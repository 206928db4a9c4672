"""The compiled side: stage programs, the scan executor, the circular forward, the reference."""

from jaxpipe.runtime.loss import LossMeans as LossMeans
from jaxpipe.runtime.loss import LossSums as LossSums
from jaxpipe.runtime.mesh import make_mesh as make_mesh
from jaxpipe.runtime.model import LayeredModel as LayeredModel
from jaxpipe.runtime.model import Params as Params
from jaxpipe.runtime.model import StatefulBlock as StatefulBlock
from jaxpipe.runtime.pipeline import FunctionalPipeline as FunctionalPipeline
