"""Working with a scheme: its summary, its effects as numbers and as pictures, its conformance, a file of one's own."""
