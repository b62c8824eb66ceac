"""What runs beside `fit`: training rules of the papers, and probes that look inside a network."""

from zoo.callbacks.classifying import BorderlineExamples as BorderlineExamples
from zoo.callbacks.classifying import IntermediateAccuracy as IntermediateAccuracy
from zoo.callbacks.cushions import ActivationContraction as ActivationContraction
from zoo.callbacks.cushions import LayerCushion as LayerCushion
from zoo.callbacks.cushions import interlayer_cushions as interlayer_cushions
from zoo.callbacks.cushions import (
    minimal_interlayer_cushions as minimal_interlayer_cushions,
)
from zoo.callbacks.dominance import dominant_flow as dominant_flow
from zoo.callbacks.dominance import probability_of_dominance as probability_of_dominance
from zoo.callbacks.dominance import trivial_dominance as trivial_dominance
from zoo.callbacks.engine import run as run
from zoo.callbacks.gates import BlockOutputs as BlockOutputs
from zoo.callbacks.gates import ClassGates as ClassGates
from zoo.callbacks.gates import GateActivity as GateActivity
from zoo.callbacks.gates import GateBias as GateBias
from zoo.callbacks.gates import WeightStatistics as WeightStatistics
from zoo.callbacks.interventions import early_exits as early_exits
from zoo.callbacks.interventions import lesions as lesions
from zoo.callbacks.interventions import prune_report as prune_report
from zoo.callbacks.interventions import random_lesions as random_lesions
from zoo.callbacks.interventions import shuffles as shuffles
from zoo.callbacks.interventions import unrollings as unrollings
from zoo.callbacks.language import CarryState as CarryState
from zoo.callbacks.language import HalveOnStall as HalveOnStall
from zoo.callbacks.language import Perplexity as Perplexity
from zoo.callbacks.language import StopOnNaN as StopOnNaN
from zoo.callbacks.noise import noise_sensitivity as noise_sensitivity
from zoo.callbacks.patches import draw_patches as draw_patches
from zoo.callbacks.patches import top_patches as top_patches
from zoo.callbacks.probe import Probe as Probe
from zoo.callbacks.progress import Progress as Progress
from zoo.callbacks.refinement import ActivationNorm as ActivationNorm
from zoo.callbacks.refinement import CosineLoss as CosineLoss
from zoo.callbacks.refinement import EstimationError as EstimationError
from zoo.callbacks.refinement import GradientNorm as GradientNorm
from zoo.callbacks.refinement import L2Ratio as L2Ratio
from zoo.callbacks.refinement import TaylorTerm as TaylorTerm
from zoo.callbacks.run_probes import RunProbes as RunProbes
from zoo.callbacks.table import Table as Table
