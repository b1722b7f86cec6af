"""Several processes for rankers without gradients."""

from __future__ import annotations

from lightning.pytorch.strategies import DDPStrategy


class UnwrappedStrategy(DDPStrategy):
    """Lightning's DDP for a module without gradients: processes are started and joined, nothing is wrapped."""

    def configure_ddp(self) -> None:
        """torch's DistributedDataParallel refuses a module without parameters, and there is nothing for it to do."""
