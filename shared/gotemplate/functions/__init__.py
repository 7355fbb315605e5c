"""The functions of templates; `catalog.py` lists them."""
