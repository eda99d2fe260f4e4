"""Changes to a model before or while it trains: one file each. See base.py."""

from .base import Adapt, AdaptContext, Apart, While
from .lora import LoRA
from .none import AsItIs
from .pruned import Pruned
from .pufferfish import Pufferfish
from .quantized import Quantized

__all__ = ["Adapt", "AdaptContext", "Apart", "AsItIs", "LoRA", "Pruned", "Pufferfish", "Quantized", "While"]
