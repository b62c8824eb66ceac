"""The driver of all experiments, whose modules have settings, measurements and claims."""

from zoo.recipes.experiment import plots as plots
from zoo.recipes.experiment.command_line import main as main
from zoo.recipes.experiment.definitions import Artifact as Artifact
from zoo.recipes.experiment.definitions import Claim as Claim
from zoo.recipes.experiment.definitions import Control as Control
from zoo.recipes.experiment.definitions import Experiment as Experiment
from zoo.recipes.experiment.definitions import ImageSelection as ImageSelection
from zoo.recipes.experiment.definitions import ImageSettings as ImageSettings
from zoo.recipes.experiment.definitions import Settings as Settings
from zoo.recipes.experiment.definitions import setting as setting
from zoo.recipes.experiment.networks import DivergenceError as DivergenceError
from zoo.recipes.experiment.networks import Network as Network
from zoo.recipes.experiment.run import Options as Options
from zoo.recipes.experiment.run import Run as Run
