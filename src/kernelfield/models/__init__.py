"""Networks, one file per family, and a registry of named configurations.

- continuous kernels: ``ccnn`` is the simplest to read; ``ckcnn``, ``flexnet``, ``cifar_resnet``; ``dnarch/`` learns the
  architecture of a CCNN; ``gridified`` is for point clouds, ``random_kernels`` for small data sets;
- groups: ``gcnn``, ``nin_resnet20``, ``group_unet``, ``gsanet``, ``partial_gcnn``, ``augerino``; ``wavelet_net`` with
  ``wavelet_stages``;
- a field alone: ``image_field``;
- shared: ``classifier`` and ``readout`` (last maps, and base classes of networks that end in them), ``point_inputs``,
  ``kernel_arguments``, ``registry`` (networks by name); ``pretrained/`` reads and writes weights.
"""

from .augerino import Augerino
from .ccnn import CCNN
from .cifar_resnet import CIFARResNet
from .ckcnn import CKCNN, FlexTCN
from .classifier import Classifier
from .dnarch import DNArch
from .flexnet import FlexNet
from .gcnn import GCNN, GroupAllCNN, GroupDenseNet, GroupResNet
from .gridified import GridifiedNet
from .group_unet import GroupUNet
from .gsanet import GSANet
from .image_field import ImageField
from .nin_resnet20 import GroupNIN, GroupResNetV1
from .partial_gcnn import PartialGCNN, PartialGCNN13
from .pretrained import describe_weight, from_pretrained, save_pretrained
from .random_kernels import RandomKernelNet, RandomKernels
from .registry import create_model, import_network, list_models, register
from .wavelet_net import WaveletNet

__all__ = [
    "CCNN",
    "CKCNN",
    "GCNN",
    "Augerino",
    "CIFARResNet",
    "Classifier",
    "DNArch",
    "FlexNet",
    "FlexTCN",
    "GSANet",
    "GridifiedNet",
    "GroupAllCNN",
    "GroupDenseNet",
    "GroupNIN",
    "GroupResNet",
    "GroupResNetV1",
    "GroupUNet",
    "ImageField",
    "PartialGCNN",
    "PartialGCNN13",
    "RandomKernelNet",
    "RandomKernels",
    "WaveletNet",
    "create_model",
    "describe_weight",
    "from_pretrained",
    "import_network",
    "list_models",
    "register",
    "save_pretrained",
]
