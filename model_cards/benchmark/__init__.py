"""How fast the encoder is: schemes and peers of equal dimensions on the same batches, in turns.

- `python -m model_cards.benchmark`: forward, backward and step, memory, where the time goes.
- `python -m model_cards.benchmark.serving`: PyTorch, ONNX Runtime and OpenVINO on a file of texts.
- `python -m model_cards.benchmark.targets`: what is wanted of a GPU, pass or fail.

Contenders take turns on every batch and are compared within the turn, so that what else the machine does hits all
alike; a ratio is the median over the turns.
"""
