"""One simulated system per file, found by its SCENARIO attribute."""
