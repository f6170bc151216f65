"""The engine: line, runner, executors and what ties them together. Knows no model and no surface."""
