"""Formats that hold pickles, which are programs: read by an unpickler that loads a short list of names."""
