"""Data: from files, a folder or the Hub to a frozen `PreparedData`.

- `reading` finds the splits and reads each file into a `datasets.Dataset`.
- `columns` finds text and label, `labels` the task and the classes.
- `preparing` chooses the rows, sets texts aside and makes token ids.
- `tokenizer` trains a tokenizer.
"""
