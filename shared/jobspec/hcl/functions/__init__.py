"""The functions that HCL expressions may call."""
