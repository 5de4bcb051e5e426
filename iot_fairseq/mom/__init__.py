"""Mixture-of-Modules: language models assembled per token from pools of modules (Gong et al., EMNLP
2024, arXiv 2407.06677)."""

from . import criterion, model  # noqa: F401  (they register themselves)
