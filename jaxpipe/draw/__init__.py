"""Timelines to look at: SVG, PNG, and traces for Perfetto.

Text timelines need no drawing library: `jaxpipe.schedule.draw_text`.

>>> from jaxpipe.draw import to_trace
>>> from jaxpipe.schedule import make_schedule, simulate
>>> trace = to_trace(simulate(make_schedule("1f1b", 4, 8)))
"""

from jaxpipe.draw.live import live_steps as live_steps
from jaxpipe.draw.picture import to_png as to_png
from jaxpipe.draw.picture import to_svg as to_svg
from jaxpipe.draw.trace import to_trace as to_trace
