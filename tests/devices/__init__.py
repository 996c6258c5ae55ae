"""Devices that a machine does not have."""
