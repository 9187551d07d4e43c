"""Views of finished runs: traces, and the HTML page of logs."""
