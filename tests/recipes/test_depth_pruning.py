"""Scores of blocks to remove, against the damage of their removal."""

import json

import keras
import numpy as np

import zoo
from helpers.harness import output_of, slow_elsewhere, start_recipe, without_backend
from helpers.recipes import recipe
from helpers.test_data import lines_of, rows_of, write_images


@without_backend
def test_rank_correlations_and_their_interval():
    with recipe("depth_pruning") as module:
        assert module.rank_correlation([1, 5, 3], [0.1, 9.0, 0.2]) == 1
        # ranks 0 1 2 3 and 1 0 2 3: 1 - 6 (1 + 1) / (4 (16 - 1))
        np.testing.assert_allclose(module.rank_correlation([1, 2, 3, 4], [2, 1, 3, 4]), 0.8)
        rows = [
            {"network": name, "seed": 0, "l2_ratio": i, "damage": -i if name == "highway" else i}
            for name in module.NETWORKS
            for i in range(3)
        ]
        row = module.summary("l2_ratio", rows)
        alone = module.summary("l2_ratio", [row for row in rows if row["network"] == "highway"])
    np.testing.assert_allclose(row["correlation"], 1 / 3)
    assert row["highway"] == -1 and row["residual"] == 1 and row["networks"] == 3
    assert -1 <= row["low"] < row["correlation"] < row["high"] <= 1
    assert alone["correlation"] == -1 and alone["networks"] == 1


@slow_elsewhere
def test_the_study_writes_scores_and_damage_of_every_block(tmp_path):
    data = write_images(tmp_path / "a.npz", (8, 8, 1)), "--data=other", "--budget=smoke"
    output_of(start_recipe("depth_pruning.py", *data, "--seeds=1", f"--run_dir={tmp_path}"))
    lines = lines_of(tmp_path)
    assert {line["metric"] for line in lines} == {
        f"rank_correlation_{score}"
        for score in ("block_influence", "l2_ratio", "weights", "taylor", "cosine")
    }
    rows = rows_of(tmp_path / "blocks.csv")
    assert len(rows) == 3 * 10 and all(np.isfinite(float(row["damage"])) for row in rows)
    assert (tmp_path / "scores.png").exists()


@slow_elsewhere
def test_trained_networks_get_a_plan_beside_random_choices(tmp_path):
    folder = tmp_path / "runs" / "small-other-0"
    folder.mkdir(parents=True)
    x = inputs = keras.Input((16, 16, 3))
    for _ in range(4):
        x = keras.layers.Add()([x, keras.layers.Conv2D(3, 3, padding="same")(x)])
    outputs = keras.layers.Dense(2, "softmax")(keras.layers.Flatten()(x))
    model = keras.Model(inputs, outputs)
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.save(folder / "model.keras")
    config = {"model": "small", "seed": 7, "preprocessing": "miniature", "images": 8}
    (folder / "config.json").write_text(json.dumps(config))
    data = write_images(tmp_path / "a.npz"), "--data=other", "--budget=smoke", "--trained=small"
    runs = f"--runs={tmp_path / 'runs'}", f"--run_dir={tmp_path / 'run'}"
    output_of(start_recipe("depth_pruning.py", *data, *runs))
    lines = lines_of(tmp_path / "run")
    (plan,) = (line for line in lines if line["metric"] == "kl_of_the_plan")
    low, high = plan["random_range"]
    assert plan["seeds"] == [7] and len(plan["blocks"]) == 1 and low <= plan["value"] <= high
    rows = rows_of(tmp_path / "run" / "blocks.csv")
    same = [block.name for block in zoo.blocks.find_blocks(model)[0] if not block.changes_shape]
    assert [row["block"] for row in rows] == same
