"""The geometry of attention, for TransformerLens.

>>> import tl_geometry as tlg
>>> probe = tlg.Probe(model)
>>> model.run_with_hooks(tokens, fwd_hooks=probe.hooks())
>>> probe.result()

The public names stand in ``__init__.pyi``; each is imported when it is first used.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
