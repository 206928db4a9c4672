"""What runs when: pipeline schedules as plain values, without JAX.

    >>> from jaxpipe import schedule
    >>> schedule.one_f_one_b(4, 8).num_stages
    4
"""

from jaxpipe.schedule.action import Action as Action
from jaxpipe.schedule.action import Cell as Cell
from jaxpipe.schedule.action import Kind as Kind
from jaxpipe.schedule.costs import Costs as Costs
from jaxpipe.schedule.dependencies import dependencies as dependencies
from jaxpipe.schedule.gpipe import gpipe as gpipe
from jaxpipe.schedule.one_f_one_b import one_f_one_b as one_f_one_b
from jaxpipe.schedule.placement import Placement as Placement
from jaxpipe.schedule.placement import loop_placement as loop_placement
from jaxpipe.schedule.schedule import Backward as Backward
from jaxpipe.schedule.schedule import Schedule as Schedule
