"""First values of parameters; the same under every layout."""
from ._tessera import filled_with, glorot_uniform, he_normal, normal, ones, scaled_normal, truncated, uniform, zeros
