"""What this node offers: attributes, resources, drivers, looked at again every 15 s."""
