"""What runs leave to look at: traces, and the HTML page of logs."""
