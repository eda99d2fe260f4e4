"""torch's arithmetic on lists of tensors, which its own optimizers are made of (`torch._foreach_...`).

One call for a list is, on a GPU, few kernels for many tensors. Names and meanings are those of torch, without the
prefix; a trailing underscore writes into the first list.
"""

import torch

add_ = torch._foreach_add_
addcmul_ = torch._foreach_addcmul_
div_ = torch._foreach_div_
lerp_ = torch._foreach_lerp_
mul = torch._foreach_mul
mul_ = torch._foreach_mul_
norm = torch._foreach_norm
reciprocal_ = torch._foreach_reciprocal_
sqrt = torch._foreach_sqrt
sub_ = torch._foreach_sub_
