"""Package data: a small real data set for the quick start and the tests."""
