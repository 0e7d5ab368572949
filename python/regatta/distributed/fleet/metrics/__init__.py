"""Measures over the examples of all workers."""
from ...._missing import missing
from .metric import acc, auc, mae, max, min, mse, rmse, sum

__all__ = ["acc", "auc", "mae", "max", "min", "mse", "rmse", "sum"]

__getattr__ = missing(__name__)
