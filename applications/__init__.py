"""The papers' models: functions from arguments to a `keras.Model`; no training."""

from zoo.applications import char_lm_inference as char_lm_inference  # saved models name its loss
from zoo.applications.char_lm import char_lm as char_lm
from zoo.applications.cifar_resnet import avg_pooling_resnet as avg_pooling_resnet
from zoo.applications.cifar_resnet import cifar_resnet as cifar_resnet
from zoo.applications.cifar_resnet import he_resnet as he_resnet
from zoo.applications.cifar_resnet import shared_resnet as shared_resnet
from zoo.applications.cifar_resnet import (
    single_representation_resnet as single_representation_resnet,
)
from zoo.applications.cifar_resnet import wide_resnet as wide_resnet
from zoo.applications.highway import highway_a as highway_a
from zoo.applications.highway import highway_b as highway_b
from zoo.applications.highway import highway_c as highway_c
from zoo.applications.highway import highway_cifar as highway_cifar
from zoo.applications.highway import highway_mlp as highway_mlp
from zoo.applications.highway import highway_mnist as highway_mnist
from zoo.applications.registry import create_model as create_model
from zoo.applications.registry import list_models as list_models
from zoo.applications.resnet50 import highway_full_resnet50 as highway_full_resnet50
from zoo.applications.resnet50 import highway_resnet50 as highway_resnet50
from zoo.applications.resnet50 import resnet50 as resnet50
from zoo.applications.simplified_resnet import simplified_dominant_net as simplified_dominant_net
from zoo.applications.simplified_resnet import simplified_plain_net as simplified_plain_net
from zoo.applications.simplified_resnet import simplified_residual_net as simplified_residual_net
from zoo.applications.transformer_lm import transformer_lm as transformer_lm
