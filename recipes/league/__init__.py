"""The residual league: rules of residual streams, compared at equal cost."""
