"""The papers' models: functions from arguments to a `keras.Model`; no training."""

from zoo.applications.char_lm import char_lm as char_lm
