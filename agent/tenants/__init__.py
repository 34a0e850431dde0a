"""The border between a tenant's clients and the cluster: names are translated only here."""
