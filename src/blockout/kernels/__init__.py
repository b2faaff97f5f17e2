"""Fast twins of ``masking.masked_linear`` and ``masked_conv2d``. Layers call these.

One place decides how a masked product is computed, from what it is given:

==========  ======================================================================================
reference   ``masking``, with torch's own gradients: small layers, other devices and precisions,
            compiled or traced code, transforms of ``torch.func``
native      in C that is compiled at first use, if there is a compiler: weights are masked on their
            way into small products in the processor's cache, and their gradients on the way out;
            1x1 convolutions too, of few places
tiles       without a compiler: a few rows of W~ at a time, whose mask is made, used and forgotten
            in or near the cache; nothing of the size of W~ is written but its gradient
sparse      the same, where many nodes have no cluster in common: each tile leaves out the inputs
            that its outputs cannot see, and what is left of W~ may be kept for the backward pass
bfloat16    weights that are masked in float32 and rounded, as autocast says: in compiled code for
            small batches; else in tiles, if products in bfloat16 are measured to be faster here
kept        without gradients, and where P is used (eval mode): the masked weight of the last call
==========  ======================================================================================

Needs torch only, and no compiler. The same draws on the same machine with the same number of
threads give the same bits; with and without compiled code, the same but for rounding.
"""

from blockout.kernels.choice import masked_conv2d, masked_linear
from blockout.kernels.half import bfloat16_time
from blockout.kernels.kept import forget
from blockout.kernels.native import compiled, is_large

__all__ = ["bfloat16_time", "compiled", "forget", "is_large", "masked_conv2d", "masked_linear"]
