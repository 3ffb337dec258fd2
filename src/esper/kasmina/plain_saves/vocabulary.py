"""What the description of a network may call: fixed tables of torch's functions, methods, layers.

A name from a file is looked up here and nowhere else. Everything listed computes with tensors or
numbers: nothing reads or writes files, loads code, takes functions as arguments or changes settings
of the process.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from esper.kasmina.plain.plain_graph import TrainingFlag

_POINTWISE = """
abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2
arctanh asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu clamp
clamp_max clamp_min clip conj copysign cos cosh deg2rad digamma div divide dropout eq erf erfc
erfinv exp exp2 expm1 fix float_power floor floor_divide fmax fmin fmod frac ge greater
greater_equal gt hypot i0 isclose isfinite isinf isnan ldexp le lerp less less_equal lgamma log
log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit lt
maximum minimum mul multiply mvlgamma nan_to_num ne neg negative nextafter not_equal polygamma
positive pow prelu rad2deg reciprocal relu remainder round rrelu rsqrt rsub selu sgn sigmoid sign
signbit sin sinc sinh softmax log_softmax sqrt square sub subtract tan tanh threshold true_divide
trunc xlogy
"""
_REDUCTIONS = """
all allclose amax amin aminmax any argmax argmin count_nonzero cummax cummin cumprod cumsum
diff dist equal kthvalue logcumsumexp logsumexp max mean median min mode msort nanmean nanmedian
nansum norm prod quantile sort argsort std std_mean sum topk trace var var_mean
"""
_SHAPES = """
broadcast_to chunk clone concat concatenate cat column_stack diag diag_embed diagonal dsplit dstack
expand_copy flatten flip fliplr flipud gather hsplit hstack index_add index_copy index_fill
index_select masked_fill masked_scatter masked_select meshgrid moveaxis movedim narrow
permute ravel repeat_interleave reshape roll rot90 row_stack scatter scatter_add select
slice_scatter select_scatter split split_with_sizes squeeze stack swapaxes swapdims t take
take_along_dim tensor_split tile transpose tril triu unbind unflatten unsqueeze vsplit vstack where
view_as_real view_as_complex
"""
_ALGEBRA = """
addbmm addmm addmv addr baddbmm bmm cdist chain_matmul cosine_similarity cov cross dot einsum
inner kron matmul matrix_exp mm mv outer pairwise_distance pdist tensordot
"""
_CREATION = """
arange as_tensor bartlett_window blackman_window empty empty_like eye full full_like hamming_window
hann_window linspace logspace ones ones_like rand rand_like randint randint_like randn randn_like
randperm scalar_tensor tensor tril_indices triu_indices zeros zeros_like bernoulli multinomial
normal poisson complex polar real imag is_tensor is_floating_point is_complex numel bucketize
bincount searchsorted histc
"""
_LAYER_FUNCTIONS = """
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
adaptive_max_pool3d affine_grid alpha_dropout avg_pool1d avg_pool2d avg_pool3d batch_norm bilinear
celu channel_shuffle conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
cosine_similarity dropout dropout1d dropout2d dropout3d elu embedding embedding_bag
feature_alpha_dropout fold gelu glu grid_sample group_norm gumbel_softmax hardshrink hardsigmoid
hardswish hardtanh instance_norm interpolate layer_norm leaky_relu linear local_response_norm
log_softmax logsigmoid lp_pool1d lp_pool2d max_pool1d max_pool2d max_pool3d mish normalize one_hot
pad pairwise_distance pixel_shuffle pixel_unshuffle prelu relu relu6 rms_norm rrelu
scaled_dot_product_attention selu sigmoid silu softmax softmin softplus softshrink softsign tanh
tanhshrink threshold unfold upsample
"""
_IN_PLACE_LAYERS = "celu_ elu_ hardtanh_ leaky_relu_ relu_ rrelu_ selu_ threshold_"
_OPERATORS = """
abs add and_ concat contains eq floordiv ge getitem gt iadd iand ifloordiv ilshift imatmul imod imul
index invert ior ipow irshift is_ is_not isub itruediv ixor le lshift lt matmul mod mul ne neg not_
or_ pos pow rshift setitem sub truediv truth xor
"""
_MATH = "ceil cos exp fabs floor gcd isqrt log log10 log1p log2 pow prod sin sqrt tan tanh trunc"
_BUILTINS = "bool float getattr int len list max min round slice sum tuple"
_TENSOR_METHODS = """
bfloat16 bool byte char contiguous cpu detach dim double element_size expand expand_as float
get get_device half int is_contiguous item long masked_fill ndimension nelement new_empty new_full
new_ones new_tensor new_zeros numel repeat reshape_as requires_grad_ resize_as short size
sum_to_size to tolist type type_as unfold view view_as count index keys values items stride
storage_offset
"""
_IN_PLACE_METHODS = """
abs_ add_ addbmm_ addcdiv_ addcmul_ addmm_ baddbmm_ bernoulli_ bitwise_and_ bitwise_not_ bitwise_or_
bitwise_xor_ ceil_ clamp_ clamp_max_ clamp_min_ copy_ cos_ cumprod_ cumsum_ detach_ div_ eq_ erf_
exp_ expm1_ exponential_ fill_ fill_diagonal_ floor_ floor_divide_ fmod_ ge_ gt_ index_add_
index_copy_ index_fill_ index_put_ le_ lerp_ log_ log1p_ logical_and_ logical_not_ logical_or_ lt_
masked_fill_ masked_scatter_ mul_ multiply_ nan_to_num_ ne_ neg_ normal_ pow_ random_ reciprocal_
relu_ remainder_ round_ rsqrt_ scatter_ scatter_add_ sigmoid_ sign_ sin_ sqrt_ square_ squeeze_ sub_
subtract_ t_ tan_ tanh_ transpose_ tril_ triu_ trunc_ uniform_ unsqueeze_ xlogy_ zero_
"""

_ATTRIBUTES = "shape device dtype ndim is_cuda requires_grad T mT H mH real imag values indices"

ATTRIBUTES: Final = frozenset(_ATTRIBUTES.split())
"""What `getattr` may read."""
METHODS: Final = frozenset(
    " ".join(
        (_POINTWISE, _REDUCTIONS, _SHAPES, _ALGEBRA, _TENSOR_METHODS, _IN_PLACE_METHODS)
    ).split()
) | {"bernoulli", "multinomial", "index_put", "bincount"}
"""Methods that may be called, by name."""


def _functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    tables = (
        ("torch", torch, _POINTWISE + _REDUCTIONS + _SHAPES + _ALGEBRA + _CREATION),
        ("torch.nn.functional", F, _LAYER_FUNCTIONS + _IN_PLACE_LAYERS),
        ("operator", operator, _OPERATORS),
        ("math", math, _MATH),
        ("builtins", builtins, _BUILTINS),
    )
    for prefix, owner, names in tables:
        for name in names.split():
            if hasattr(owner, name):  # torch's functions differ between its versions
                yield f"{prefix}.{name}", getattr(owner, name)


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = dict(_functions())
"""Functions that may be called, by name."""
FUNCTION_NAMES: Final[Mapping[Callable[..., Any], str]] = {
    FUNCTIONS[name]: name for name in reversed(list(FUNCTIONS))
}

_LAYERS = """
AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d
AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d AvgPool3d BatchNorm1d BatchNorm2d BatchNorm3d
Bilinear CELU ChannelShuffle CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d
ConstantPad3d Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d CosineSimilarity
Dropout Dropout1d Dropout2d Dropout3d ELU Embedding FeatureAlphaDropout Flatten Fold GELU GLU GRU
GRUCell GroupNorm Hardshrink Hardsigmoid Hardswish Hardtanh Identity InstanceNorm1d InstanceNorm2d
InstanceNorm3d LPPool1d LPPool2d LSTM LSTMCell LayerNorm LeakyReLU Linear LocalResponseNorm
LogSigmoid LogSoftmax MaxPool1d MaxPool2d MaxPool3d Mish MultiheadAttention PReLU PairwiseDistance
PixelShuffle PixelUnshuffle RMSNorm RNN RNNCell RReLU ReLU ReLU6 ReflectionPad1d ReflectionPad2d
ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d SELU SiLU Sigmoid Softmax
Softmax2d Softmin Softplus Softshrink Softsign Tanh Tanhshrink Threshold TransformerEncoderLayer
Unflatten Unfold Upsample UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d
"""
LAYERS: Final[Mapping[str, type[nn.Module]]] = {
    name: getattr(nn, name) for name in _LAYERS.split() if hasattr(nn, name)
} | {"TrainingFlag": TrainingFlag}
"""Layers that may be built, by name; the last one is ours, of networks that still train."""
