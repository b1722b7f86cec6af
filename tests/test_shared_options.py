"""What one ranker's command line hands on to the row that is made of it."""

from __future__ import annotations

from experiment.named_configs import shared_options


def test_data_seed_and_outputs_are_handed_on_and_nothing_else() -> None:
    given = (
        "--model nn_model1 --model.p_self 0.1 --data folder --data.path a=b --seed=3 --trainer.devices 2 --output_dir o"
    )
    assert shared_options(given.split()) == "--data folder --data.path a=b --seed=3 --output_dir o".split()
