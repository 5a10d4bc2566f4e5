"""The work behind the API: sealing, fitting, publishing. Many workers may run; leases keep them apart."""
