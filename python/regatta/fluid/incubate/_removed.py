"""What became of the fleet of Paddle 1.x."""
from __future__ import annotations

REMOVED = (
    "paddle.fluid.incubate.fleet was removed in 2.0: use paddle.distributed.fleet "
    "(import paddle.distributed.fleet as fleet). Both DistributedStrategy classes of 1.x are "
    "paddle.distributed.fleet.DistributedStrategy now; for fleet.main_program and "
    "fleet._origin_program use paddle.static.default_main_program()"
)
