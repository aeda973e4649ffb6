"""Data: from files, a folder or the Hub to a frozen `PreparedData`.

- `sources` finds the splits, `reading` reads a file into a `datasets.Dataset`, `tables` holds its rows and their lines.
- `memory` and `texts` read what is no file: lists, arrays, data frames.
- `columns` finds text and label, `labels` the problem type and the classes.
- `preparing` chooses the rows, sets texts aside and makes token ids.
- `tokenizer` trains a tokenizer.
"""
