"""Worker processes of the bulk process: compactions, layer builds, scans."""
