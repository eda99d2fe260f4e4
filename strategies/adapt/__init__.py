"""What is done to a model before it trains: one file a way. See base.py."""

from .base import Adapt, Apart
from .lora import LoRA
from .none import AsItIs
from .quantized import Quantized

__all__ = ["Adapt", "Apart", "AsItIs", "LoRA", "Quantized"]
