"""Fast twins of ``masking.masked_linear`` and ``masked_conv2d``. Layers call these.

One place decides how a masked product is computed, from what it is given:

==========  ======================================================================================
reference   ``masking``, with torch's own gradients: small layers, other devices and precisions,
            autocast, compiled or traced code, transforms of ``torch.func``
tiles       a few rows of W~ at a time, whose mask is made, used and forgotten in or near the
            processor's cache: nothing of the size of W~ is written but its gradient
sparse      the same, where many nodes have no cluster in common: each tile leaves out the inputs
            that its outputs cannot see, and what is left of W~ may be kept for the backward pass
kept        without gradients, and where P is used (eval mode): the masked weight of the last call
==========  ======================================================================================

Needs torch only, and no compiler. The same draws on the same machine with the same number of
threads give the same bits.
"""

from blockout.kernels.choice import masked_conv2d, masked_linear
from blockout.kernels.kept import forget

__all__ = ["forget", "masked_conv2d", "masked_linear"]
