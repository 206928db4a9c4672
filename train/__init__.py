"""Programs over the library: each module with a `main` is run as `python -m train.NAME`."""
