"""What runs beside `fit`: training rules of the papers, and probes."""

from zoo.callbacks.language import CarryState as CarryState
from zoo.callbacks.language import HalveOnStall as HalveOnStall
from zoo.callbacks.language import Perplexity as Perplexity
from zoo.callbacks.language import StopOnNaN as StopOnNaN
from zoo.callbacks.progress import Progress as Progress
