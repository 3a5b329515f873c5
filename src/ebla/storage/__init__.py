"""A tablet replica as a small stack of sorted layers: codecs, layers, commit log, manifest, folds."""
