"""Looking at a running engine: environment, log, timing, progress."""
