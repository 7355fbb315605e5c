"""The processes of Caravan, one package a role; a service knows nothing of its siblings."""
