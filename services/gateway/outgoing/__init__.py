"""Events sent out by HTTP: subscriptions, what is sent for a record, how it is repeated. No IO, no clock."""
