"""A model without weights, whose clips are a moving gradient and a tone: for tests of everything above models."""
