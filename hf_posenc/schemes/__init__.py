"""Working with a scheme: summaries (`inspection`), effects as numbers and plots, conformance, custom scheme files."""
