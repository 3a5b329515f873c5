"""The codecs for whole Arrow columns: keys, rows and values by vector operations; sidecar files."""
