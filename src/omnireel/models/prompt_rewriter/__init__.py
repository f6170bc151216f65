"""A language model of transformers that puts a short prompt into many words, as the first stage of a pipeline."""
