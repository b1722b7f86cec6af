"""Train, tune and export one ranker, or several.

    python train.py --model NAME [--data NAME] [--seed N] [--output_dir DIR] [--trainer.devices 4 ...]
    python train.py --model nn_model1 --seeds 5                        # seeds 1 to 5, then their per-query average
    python train.py --models bm25_lemm,model1_word                     # one after the other
    python train.py --model all --seeds 5 [--slow_seeds 1]             # every row of the table, trained and measured
    python train.py --model all --at_once 4                            # four at a time, each with its share of cores
    python train.py --model bm25_lemm                                  # tunes k1 and b on `development`
    python train.py --model bm25_lemm_word --data folder --data.path DIR
    python train.py --model leaderboard                                # of rankers trained before; it names the missing
    python train.py --data NAME --data.stats                           # what is in the data; trains nothing

NAME of a model is configs/model/NAME.yaml, NAME of data is configs/data/NAME.yaml; the path of a YAML file works too.
Everything else is Lightning's own command line: `--model.k1 0.9`, `--data.workers 1`, `--trainer.precision
bf16-mixed`, `--print_config`, `--help`.

What it does: prepares the data (cached), fits or tunes the ranker, learns the fusion weights on `train_fusion`,
reports on `development`. Test queries are touched by evaluate.py alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from lexical.errors import UserError, run_script

# Lightning, torch and the rest are imported where they are needed: a mistyped name is answered at once, and the
# worker processes of the preparation, which import this file, start without them.


def train(argv: Sequence[str]) -> dict[str, float]:
    """Trains the ranker that `argv` asks for; what was measured on `development`."""
    from pipeline.configs import names, resolve, take_option

    if take_option(argv, "model")[0] == "all":
        return train_all(take_option(argv, "model")[1])
    models, argv = take_option(argv, "models")
    if models is not None:
        return train_models(models.split(","), argv)
    seeds, argv = take_option(argv, "seeds")
    if seeds is not None:
        return train_seeds(seeds, argv)
    stats = "--data.stats" in argv
    resolved = resolve([argument for argument in argv if argument != "--data.stats"])
    if stats:
        from pipeline.data_statistics import print_statistics

        print_statistics(resolved)
        return {}
    if resolved.model is None:
        if {"-h", "--help"} & set(argv):
            print(__doc__)
            print(f"models: {', '.join(names('model'))}\ndata:   {', '.join(names('data'))}\n")
            print("All settings of a ranker: python train.py --model NAME --help")
            return {}
        raise UserError(f"say which ranker: --model NAME with one of: {', '.join(names('model'))}")
    from pipeline.command_line import NamedConfigCLI
    from pipeline.training import MAKES, train_ranker

    cli = NamedConfigCLI(resolved, f"Train {resolved.model.name} on {resolved.data.name}.")
    metrics = train_ranker(cli)
    if metrics and (row := MAKES.get(resolved.model.name)):  # the same network as a table: no second training
        train(["--model", row, "--data", resolved.data_name, "--config", cli.shared_config()])
    return metrics


def train_all(argv: Sequence[str]) -> dict[str, float]:
    """Trains and measures every row on this data; what is there is kept."""
    from pipeline.all_rows import Asked, run_all
    from pipeline.configs import resolve

    def folder_of(asked: Asked) -> Path:
        from pipeline.command_line import parse_data  # imports Lightning: not before the arguments are checked

        _, built = parse_data(resolve(["--data", asked.data, *asked.rest]), "", [])
        return asked.output_dir / built.data.name

    run_all(argv, folder_of)
    return {}


def train_models(models: Sequence[str], argv: Sequence[str]) -> dict[str, float]:
    """Trains the rankers in this order, all with the same settings; "NAME/measure" of what was measured."""
    from pipeline.configs import load, take_option

    if take_option(argv, "model")[0] is not None:
        raise UserError("give --model NAME or --models a,b,c, not both")
    for name in models:
        load(name, "model", {"model", "trainer"})  # a mistyped name is answered before anything is trained
    measured = {name: train(["--model", name, *argv]) for name in models}
    return {f"{name}/{key}": value for name, values in measured.items() for key, value in values.items()}


def train_seeds(seeds: str, argv: Sequence[str]) -> dict[str, float]:
    """Trains seeds 1 to `seeds`, those that are not there yet, and measures them; means of the `development` values."""
    if not seeds.isdecimal() or int(seeds) < 1:
        raise UserError(f"--seeds {seeds}: must be a number, 1 or more")
    if any(argument.split("=", 1)[0] == "--seed" for argument in argv):
        raise UserError("give --seeds N (seeds 1 to N) or --seed N (one of them), not both")
    measured = [train([*argv, "--seed", str(seed), "--skip_trained", "true"]) for seed in range(1, int(seeds) + 1)]
    if {"-h", "--help"}.isdisjoint(argv):
        measure_seeds(argv)
    return {name: sum(one[name] for one in measured) / len(measured) for name in measured[0]}


def measure_seeds(argv: Sequence[str]) -> None:
    """Measures the seeds that `argv` has trained, and averages them per query: what evaluate.py does."""
    from evaluate import evaluate
    from lexical.terminal import say
    from pipeline.configs import take_option
    from pipeline.training import MAKES

    model, rest = take_option(argv, "model")
    row = Path(str(model)).stem
    rows = ",".join(filter(None, (row, MAKES.get(row))))
    several = take_option(rest, "trainer.devices")[0] not in (None, "1")
    if several or take_option(rest, "config")[0] is not None or "-c" in rest:  # a file may hold settings of the model
        say(f"measure the seeds with: python evaluate.py --models {rows}")
        return
    evaluate([*_without(rest, "--model."), "--models", rows, "--skip_measured", "true"])


def _without(argv: Sequence[str], prefix: str) -> list[str]:
    """The arguments without the options that begin with `prefix`, and without their values."""
    kept: list[str] = []
    skipping = False
    for argument in argv:
        if argument.startswith("--"):
            skipping = argument.startswith(prefix) and "=" not in argument
            if argument.startswith(prefix):
                continue
        elif skipping:
            continue
        kept.append(argument)
    return kept


if __name__ == "__main__":
    sys.exit(run_script(train))
