"""What is called while a :class:`regatta.Model` trains: :mod:`regatta.hapi.callbacks`."""
from .hapi.callbacks import (  # noqa: F401
    Callback, EarlyStopping, LRScheduler, ModelCheckpoint, ProgBarLogger, __all__, __getattr__,
)
