"""Studies on real data, whose results `results/` keeps."""
