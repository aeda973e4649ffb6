"""Checkpoints for other runtimes: a folder without code that a server or a library of another kind loads.

- `run`: the entry; refuses first, writes the folder whole or not at all, says what it did.
- `native`: Transformers' own classes, by other names of the same weights.
- `graph`: ONNX and OpenVINO, by `transformers.exporters`.
- `parity`: compares what was written with PyTorch, on real texts.
- `folder`: what lies beside the graph: configuration, tokenizer, a sentence-transformer's modules, README.md.

`hf_posenc.export(checkpoint, out, "onnx")` is `exporting.run.export`.
"""
