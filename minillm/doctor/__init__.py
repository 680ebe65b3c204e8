"""What this machine has, which engine would run here, and why not another. Needs no model."""

from minillm.doctor.checkup import Checkup, checkup

__all__ = ["Checkup", "checkup"]
