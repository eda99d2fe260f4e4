"""What is done to a model before it trains, or while it does: one file a way. See base.py."""

from .base import Adapt, AdaptContext, Apart, While
from .lora import LoRA
from .none import AsItIs
from .pruned import Pruned
from .pufferfish import Pufferfish
from .quantized import Quantized

__all__ = ["Adapt", "AdaptContext", "Apart", "AsItIs", "LoRA", "Pruned", "Pufferfish", "Quantized", "While"]
