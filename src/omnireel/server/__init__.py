"""HTTP: the videos API over one engine. `app` puts the rest together; nothing here knows a model by name."""
