"""Stamp, verify and plan KV-cache canaries the way SGLang does, and look at what they find."""
