"""Looking at a running engine: environment, log, figures, profile, timing, progress, process titles."""
