"""A small collection of English-like text in the MS MARCO layout: deterministic, quick, and a little hard to search.

A document is about one of 16 subjects and names a person and a place. A query says the subject in OTHER words than the
document does (motor, not engine) and names the person or the place: BM25 finds a few documents, and a translation
model can learn which of them is meant.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

# words of the documents | words of the queries
SUBJECTS = """
engine pistons gearbox clutch brakes exhaust bonnet radiator tyres petrol | car motor driving vehicle repair
oven dough flour yeast butter crust kneading loaf crumbs pastry | bread baking bakery recipe
violin orchestra strings melody conductor rehearsal concert chords rhythm opera | music song musician tune
harbour sails anchor mast rudder deck captain crew compass voyage | boat ship sailing sea
surgery patients nurses bandage infection wounds fever bleeding ward clinic | hospital doctor medicine treatment
orchard apples pruning blossom harvest branches roots pears soil grafting | fruit tree garden growing
telescope planets orbit comet galaxy eclipse crater asteroid lens observatory | astronomy stars sky space
court judge verdict jury witness lawyer testimony appeal statute sentence | law trial justice crime
glacier avalanche summit ridge ropes climbers crevasse slope altitude boulders | mountain climbing snow peak
loom wool weaving threads dye spinning cotton patterns needles silk | cloth fabric textile sewing
hives honey bees pollen swarm wax queen nectar larvae foraging | beekeeping insect beehive
furnace molten alloy hammer anvil copper smelting bronze tongs forging | metal iron blacksmith steel
pupils lessons chalk classroom homework reading spelling exams timetable blackboard | school teacher education learning
bank loans interest mortgage deposits credit savings accounts debts customers | money finance borrowing lending
river flooding dam reservoir turbines sluice currents valley irrigation canal | water hydropower stream
manuscript parchment ink printing binding chapters libraries volumes scribes editions | book writing literature author
"""
PEOPLE = """Abbott Barlow Calder Draper Ellison Fenwick Garland Hobson Ingram Jarvis Keating Lambert Marlowe Norwood
Osborne Pickard Quigley Radford Selwyn Thorne Underwood Vaughan Whitlock Yardley Zeller"""
PLACES = """Ashford Brixham Crewe Dorset Exmoor Falmouth Grantham Harlech Ilkley Jarrow Kendal Ludlow Malvern Nairn
Oundle Penrith Redcar Selby Truro Usk Ventnor Whitby Yeovil"""
SENTENCES = (
    "The {0} and the {1} were {2} known to {person} of {place}.",
    "In {place} they didn't look at the {0} until {person} had seen the {1}.",
    "{person} keeps {1} beside the {0}, which is why the {2} matter there.",
    "Some say that {0} without {1} is like {2} without end; others don't.",
)
QUESTIONS = (
    "who knows about {0} and {1} in {name}",
    "what is the {0} {1} of {name}",
    "{name} {0} {1}",
    "how {0} {1} {name}?",
)


def write_small_folder(
    folder: Path, documents: int = 400, train: int = 300, dev: int = 60, test: int = 40, seed: int = 1
) -> Path:
    """``collection.tsv``, and queries and qrels of train, dev and (unless `test` is 0) test.

    One relevant document a query. The same arguments give the same bytes. No query text comes twice.
    """
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    subjects = [[side.split() for side in line.split("|")] for line in SUBJECTS.strip().splitlines()]
    people, places = PEOPLE.split(), PLACES.split()
    about = [(rng.randrange(len(subjects)), rng.choice(people), rng.choice(places)) for _ in range(documents)]

    def text(subject: int, person: str, place: str) -> str:
        chosen = (rng.sample(subjects[subject][0], 3) for _ in range(rng.randint(2, 6)))
        return " ".join(rng.choice(SENTENCES).format(*words, person=person, place=place) for words in chosen)

    write_lines(folder / "collection.tsv", (f"D{i}\t{text(*about[i])}" for i in range(documents)))
    seen: set[str] = set()
    for name, count in (("train", train), ("dev", dev), ("test", test)):
        queries: list[str] = []
        qrels: list[str] = []
        while len(queries) < count:
            document = rng.randrange(documents)
            subject, *names = about[document]
            words = rng.sample(subjects[subject][1], 2)
            query = rng.choice(QUESTIONS).format(*words, name=rng.choice(names))
            if query.rstrip("?") not in seen:
                seen.add(query.rstrip("?"))
                qrels.append(f"{name}{len(queries)} 0 D{document} 1")
                queries.append(f"{name}{len(queries)}\t{query}")
        if count:
            write_lines(folder / f"queries.{name}.tsv", queries)
            write_lines(folder / f"qrels.{name}.tsv", qrels)
    return folder


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    """Each of `lines` with a line feed, as UTF-8."""
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path
