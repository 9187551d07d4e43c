"""Formats that hold pickles, which are programs: their unpickler loads a short list of names."""
