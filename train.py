"""Train, tune and export one ranker, or several.

    python train.py --model NAME [--data NAME] [--profile NAME] [--seed N] [--output_dir DIR] [--trainer.devices 4 ...]
    python train.py --model nn_model1 --seeds 5                        # seeds 1 to 5, then their per-query average
    python train.py --models bm25_lemm,model1_word [--at_once 2]       # one after the other, or two at a time
    python train.py --model all --seeds 5 [--slow_seeds 1]             # every row of the table, trained and measured
    python train.py --model all --at_once 4                            # four at a time, each with its share of cores
    python train.py --model bm25_lemm                                  # tunes k1 and b on `development`
    python train.py --model bm25_lemm_word --data folder --data.path DIR
    python train.py --model leaderboard                                # of rankers that are trained already
    python train.py --data NAME --data.stats                           # what is in the data; trains nothing

NAME of a model is configs/model/NAME.yaml, NAME of data is configs/data/NAME.yaml, NAME of a profile is
configs/profile/NAME.yaml; the path of a YAML file works too. Everything else is Lightning's own command line:
`--model.k1 0.9`, `--data.workers 1`, `--trainer.precision bf16-mixed`, `--print_config`, `--help`.

What it does: prepares the data (cached), fits or tunes the ranker, learns the fusion weights on `train_fusion`,
reports on `development`. Only evaluate.py touches test queries.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lexical.errors import UserError, run_script

# Lightning, torch and the rest are imported where they are needed: a mistyped name is reported at once, and the
# worker processes of the preparation, which import this file, start without them.


def train(argv: Sequence[str]) -> dict[str, float]:
    """Train what `argv` names; return MRR on development, of several rankers as "NAME/metric"."""
    from pipeline.configs import names, resolve, take_options, wants_help

    given, rest = take_options(argv, model=str, models=str)
    if given.model and given.models:
        raise UserError("give --model NAME or --models a,b,c, not both")
    if given.model == "all":
        from pipeline.rows import train_all

        train_all(rest)
        return {}
    if "--data.stats" in rest:
        from pipeline.data_statistics import print_statistics

        print_statistics(resolve([argument for argument in rest if argument != "--data.stats"]))
        return {}
    selected = given.models.split(",") if given.models else [given.model] if given.model else []
    for name in selected:
        resolve(["--model", name, *rest])  # a mistyped name is reported before anything is trained
    if selected:
        from pipeline.rows import train_seeds, train_several

        return train_seeds(given.model, rest) if given.model else train_several(selected, rest)
    resolve(rest)  # a mistyped name of the data comes first
    if not wants_help(argv):
        raise UserError(f"say which ranker: --model NAME with one of: {', '.join(names('model'))}")
    print(__doc__)
    print("".join(f"{kind + 's:':10}{', '.join(names(kind))}\n" for kind in ("model", "data", "profile")))
    print("All settings of a ranker: python train.py --model NAME --help")
    return {}


if __name__ == "__main__":
    sys.exit(run_script(train))
