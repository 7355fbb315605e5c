"""Facts and requests on the wire, one family of Structs a file; this package imports nothing of ours."""
