"""Architectures: named wirings with their story, one short file each; `build.py` makes programs of them."""
