"""``paddle.fluid.incubate.data_generator``."""
from ....distributed.fleet import (
    DataGenerator, MultiSlotDataGenerator, MultiSlotStringDataGenerator,
)

__all__ = ["DataGenerator", "MultiSlotDataGenerator", "MultiSlotStringDataGenerator"]
