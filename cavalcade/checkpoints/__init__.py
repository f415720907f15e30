"""Checkpoints: written whole or not at all, and checked when they are read."""

from cavalcade.checkpoints.disk import is_disk_full, write_atomically
from cavalcade.checkpoints.saver import Pace, Saver

__all__ = ["Pace", "Saver", "is_disk_full", "write_atomically"]
