"""Commands that run jobs on the pipeline."""
