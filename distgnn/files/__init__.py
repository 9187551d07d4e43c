"""Files and directories that are replaced as a whole: outputs, locks, leftovers of killed runs."""
