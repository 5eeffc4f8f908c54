"""S3: one client with time limits, one path type, one reading of errors."""
