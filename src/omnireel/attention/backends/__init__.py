"""Attention backends, one file each with `BACKEND`; the folder is the list."""
