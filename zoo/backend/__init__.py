"""The one door to tensorflow, jax and torch: a function per need, its three bodies together."""

from zoo.backend.allocator import keep_memory as keep_memory
from zoo.backend.autodiff import gradients_at_marks as gradients_at_marks
from zoo.backend.compile import compiled as compiled
from zoo.backend.guided import guided_relus as guided_relus
from zoo.backend.lstm import lstm as lstm
from zoo.backend.nll import nll as nll
from zoo.backend.ops import distinct as distinct
from zoo.backend.products import jacobian_product as jacobian_product
from zoo.backend.remat import recomputed as recomputed
from zoo.backend.replicas import all_rows as all_rows
from zoo.backend.replicas import num_replicas as num_replicas
from zoo.backend.replicas import own_rows as own_rows
from zoo.backend.runtime import seed_everything as seed_everything
from zoo.backend.scan import scan_layers as scan_layers
