"""Compiled programs, as :mod:`regatta.fluid` has them."""
from ..fluid.compiler import BuildStrategy, CompiledProgram, ExecutionStrategy
from ..fluid.parallel_executor import ParallelExecutor

__all__ = ["BuildStrategy", "CompiledProgram", "ExecutionStrategy", "ParallelExecutor"]
