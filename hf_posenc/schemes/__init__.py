"""Working with a scheme: summaries (`describe`), effects as numbers and plots, conformance, custom scheme files."""
