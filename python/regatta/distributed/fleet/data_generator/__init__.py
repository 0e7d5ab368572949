"""Scripts that turn lines of users into the text that datasets read."""
from ...._missing import missing
from .data_generator import DataGenerator, MultiSlotDataGenerator, MultiSlotStringDataGenerator

__all__ = ["DataGenerator", "MultiSlotDataGenerator", "MultiSlotStringDataGenerator"]

__getattr__ = missing(__name__)
