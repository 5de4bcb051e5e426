"""Transformers whose structure adapts to the input, as a fairseq plugin.

Importing this package registers its models, criterion and task with fairseq, makes fairseq's
checkpoints load under torch's safe loading, and lets its commands train under torchrun.
"""

from . import checkpoints, kept_text, processes

checkpoints.heal_fairseq()
processes.heal_processes()
kept_text.keep_with_checkpoints()

from . import criterion, lightconv, model, mom, task  # noqa: E402, F401  (they register themselves)
from .lightconv import IotDynamicConvModel, IotLightConvModel  # noqa: E402
from .model import IotTransformerModel  # noqa: E402

__version__ = "0.1.0"
__all__ = ["IotDynamicConvModel", "IotLightConvModel", "IotTransformerModel"]
