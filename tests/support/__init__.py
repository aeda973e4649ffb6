"""What tests of several rooms share: small models, references in float64, servers and other processes."""
