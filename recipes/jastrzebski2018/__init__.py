"""Experiments of Jastrzebski et al. (2018): Residual connections encourage iterative inference."""
