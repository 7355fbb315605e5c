"""HTTP itself: the application, requests, replies, callers."""
