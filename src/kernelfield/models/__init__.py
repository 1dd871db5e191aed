"""Networks, one file per family, and a registry of named configurations."""

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
