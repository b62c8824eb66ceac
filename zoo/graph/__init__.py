"""Edits of a model's graph: models without, with repeated or with other blocks, sharing weights."""

from zoo.graph.blocks import find_blocks as find_blocks
from zoo.graph.calls import rewire as rewire
from zoo.graph.cost import cost as cost
from zoo.graph.inline import inline as inline
from zoo.graph.loop import loop as loop
from zoo.graph.surgery import add_exits as add_exits
from zoo.graph.surgery import drop_blocks as drop_blocks
from zoo.graph.surgery import fold_identity as fold_identity
from zoo.graph.surgery import lesion as lesion
from zoo.graph.surgery import prune_blocks as prune_blocks
from zoo.graph.surgery import remat as remat
from zoo.graph.surgery import shuffle as shuffle
