"""Losses, gradients and optimiser steps of a population."""
