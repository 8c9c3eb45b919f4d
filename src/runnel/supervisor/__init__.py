"""`runnel run`: capture and the pipelines as child processes that are brought back when they die."""
