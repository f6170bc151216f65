"""Models: one folder each, found by their `facts.py`; this room knows no media files, no settings and no engine."""
