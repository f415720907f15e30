"""The equations that algorithms share, each written once against an array namespace `xp`."""
