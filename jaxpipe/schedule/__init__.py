"""What runs when: pipeline schedules as plain values, without JAX.

>>> from jaxpipe.schedule import make_schedule, simulate
>>> simulate(make_schedule("1f1b", 4, 8)).makespan
33.0
"""

from jaxpipe.schedule.action import Action as Action
from jaxpipe.schedule.action import Cell as Cell
from jaxpipe.schedule.action import Kind as Kind
from jaxpipe.schedule.costs import Costs as Costs
from jaxpipe.schedule.dependencies import dependencies as dependencies
from jaxpipe.schedule.fill_weights import fill_weights as fill_weights
from jaxpipe.schedule.freeze import freeze as freeze
from jaxpipe.schedule.gpipe import gpipe as gpipe
from jaxpipe.schedule.json_notation import from_json as from_json
from jaxpipe.schedule.json_notation import to_json as to_json
from jaxpipe.schedule.live import peak_live as peak_live
from jaxpipe.schedule.lower_bound import lower_bound as lower_bound
from jaxpipe.schedule.messages import Messages as Messages
from jaxpipe.schedule.messages import count_messages as count_messages
from jaxpipe.schedule.names import make_schedule as make_schedule
from jaxpipe.schedule.names import schedule_names as schedule_names
from jaxpipe.schedule.notation import from_csv as from_csv
from jaxpipe.schedule.notation import to_csv as to_csv
from jaxpipe.schedule.one_f_one_b import one_f_one_b as one_f_one_b
from jaxpipe.schedule.placement import Placement as Placement
from jaxpipe.schedule.placement import bidirectional_placement as bidirectional_placement
from jaxpipe.schedule.placement import loop_placement as loop_placement
from jaxpipe.schedule.placement import v_placement as v_placement
from jaxpipe.schedule.recompute import insert_recompute as insert_recompute
from jaxpipe.schedule.retime import retime as retime
from jaxpipe.schedule.schedule import Backward as Backward
from jaxpipe.schedule.schedule import Schedule as Schedule
from jaxpipe.schedule.share_head import share_head as share_head
from jaxpipe.schedule.simulate import Simulation as Simulation
from jaxpipe.schedule.simulate import simulate as simulate
from jaxpipe.schedule.slicing import slice_microbatches as slice_microbatches
from jaxpipe.schedule.split_backward import merge_backward as merge_backward
from jaxpipe.schedule.split_backward import split_backward as split_backward
from jaxpipe.schedule.split_backward import undivide_backward as undivide_backward
from jaxpipe.schedule.text import draw_text as draw_text
from jaxpipe.schedule.torch_csv import from_torch_csv as from_torch_csv
from jaxpipe.schedule.torch_csv import to_torch_csv as to_torch_csv
from jaxpipe.schedule.validate import find_violations as find_violations
from jaxpipe.schedule.validate import validate as validate
from jaxpipe.schedule.violation import ScheduleError as ScheduleError
from jaxpipe.schedule.violation import Violation as Violation
from jaxpipe.schedule.walk import DeadlockError as DeadlockError
from jaxpipe.schedule.walk import walk as walk
