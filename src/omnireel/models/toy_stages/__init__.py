"""Three models without weights that make a clip together: for tests of pipelines of several stages."""
