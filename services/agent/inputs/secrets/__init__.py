"""Secrets of tasks: values that are fetched before the start, and filled in where a job refers to them."""
