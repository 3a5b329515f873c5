"""Worker processes of the bulk process: compactions, layer builds and scans on one pool of forks."""
