"""Data: from files, a folder or the Hub to a frozen `PreparedData`.

- `sources` finds the splits, `reading` reads a file into a `datasets.Dataset`.
- `columns` finds text and label, `labels` the problem type and the classes.
- `preparing` chooses the rows, sets texts aside and makes token ids.
- `tokenizer` trains a tokenizer.
"""
