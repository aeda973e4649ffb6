"""What makes the cards, the page of evidence and the page of speed, from the code and `results/`."""
