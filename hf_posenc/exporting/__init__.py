"""Checkpoints for other runtimes: a folder without code that a server or a library of another kind loads.

`hf_posenc.export(checkpoint, output, to="onnx")` is `run.export`: by `native` a class of transformers' own, by `graph`
ONNX or OpenVINO, compared with PyTorch (`parity`), with what lies beside it (`folder`).
"""
