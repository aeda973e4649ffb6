"""Publishes a checkpoint on the Hugging Face Hub: `collecting` files by name, `publishing` them, and their `card`."""
