"""Karn: what people look at. Pictures, tables and progress, made from plain numbers."""
