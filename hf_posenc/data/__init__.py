"""Data: from files, a folder or the Hub to a frozen `PreparedData`.

- `sources` finds the splits, `reading` reads a file into a `datasets.Dataset`.
- `columns` finds text and label, `labels` the task and the classes.
- `preparing` chooses the rows, `splitting` sets texts aside.
- `encoding` makes token ids, `tokenizer` trains a tokenizer.
"""
