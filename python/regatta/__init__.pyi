"""What editors and type checkers see of the package: names are loaded when they are first used, so
that they find none in ``__init__.py``. A test compares both."""
from . import amp as amp
from . import base as base
from . import callbacks as callbacks
from . import dataset as dataset
from . import device as device
from . import distributed as distributed
from . import errors as errors
from . import fluid as fluid
from . import framework as framework
from . import geometric as geometric
from . import hapi as hapi
from . import incubate as incubate
from . import inference as inference
from . import io as io
from . import jit as jit
from . import linalg as linalg
from . import metric as metric
from . import nn as nn
from . import optimizer as optimizer
from . import paddle as paddle
from . import reader as reader
from . import regularizer as regularizer
from . import static as static
from . import tensor as tensor
from . import torch as torch
from . import utils as utils
from . import v2 as v2
from . import version as version
from . import vision as vision
from ._bridge import EagerParamBase as EagerParamBase
from ._core import op_kinds as op_kinds
from ._files import load as load
from ._files import save as save
from ._mode import disable_signal_handler as disable_signal_handler
from ._mode import disable_static as disable_static
from ._mode import enable_grad as enable_grad
from ._mode import enable_static as enable_static
from ._mode import get_default_dtype as get_default_dtype
from ._mode import get_flags as get_flags
from ._mode import get_num_threads as get_num_threads
from ._mode import grad as grad
from ._mode import in_dynamic_mode as in_dygraph_mode
from ._mode import in_dynamic_mode as in_dynamic_mode
from ._mode import in_dynamic_mode as in_dynamic_or_pir_mode
from ._mode import is_grad_enabled as is_grad_enabled
from ._mode import no_grad as no_grad
from ._mode import set_default_dtype as set_default_dtype
from ._mode import set_flags as set_flags
from ._mode import set_grad_enabled as set_grad_enabled
from ._mode import set_num_threads as set_num_threads
from ._mode import set_printoptions as set_printoptions
from ._train import TrainReport as TrainReport
from ._train import train as train
from .base import core as core
from .batch import batch as batch
from .device import CPUPlace as CPUPlace
from .device import CUDAPinnedPlace as CUDAPinnedPlace
from .device import CUDAPlace as CUDAPlace
from .device import IPUPlace as IPUPlace
from .device import NPUPlace as NPUPlace
from .device import XPUPlace as XPUPlace
from .device import get_cudnn_version as get_cudnn_version
from .device import get_device as get_device
from .device import is_compiled_with_cinn as is_compiled_with_cinn
from .device import is_compiled_with_cuda as is_compiled_with_cuda
from .device import is_compiled_with_custom_device as is_compiled_with_custom_device
from .device import is_compiled_with_distribute as is_compiled_with_distribute
from .device import is_compiled_with_ipu as is_compiled_with_ipu
from .device import is_compiled_with_npu as is_compiled_with_npu
from .device import is_compiled_with_rocm as is_compiled_with_rocm
from .device import is_compiled_with_xpu as is_compiled_with_xpu
from .device import set_device as set_device
from .distributed import DataParallel as DataParallel
from .errors import PeerLost as PeerLost
from .errors import RegattaError as RegattaError
from .framework import ParamAttr as ParamAttr
from .framework import bfloat16 as bfloat16
from .framework import bool_ as bool
from .framework import dtype as dtype
from .framework import float16 as float16
from .framework import float32 as float32
from .framework import float64 as float64
from .framework import int16 as int16
from .framework import int32 as int32
from .framework import int64 as int64
from .framework import int8 as int8
from .framework import reset_default_programs as reset_default_programs
from .framework import seed as seed
from .framework import uint8 as uint8
from .framework import unique_name as unique_name
from .hapi import Model as Model
from .hapi import summary as summary
from .tensor import Tensor as Tensor
from .tensor import create_parameter as create_parameter
from .tensor.attribute import *
from .tensor.composed import *
from .tensor.creation import *
from .tensor.einsum import *
from .tensor.linalg import *
from .tensor.logic import *
from .tensor.manipulation import *
from .tensor.math import *
from .tensor.random import *
from .tensor.search import *

__version__: str
