"""Code from its description: Java (Hu et al., 2018) and Python (Barone and Sennrich, 2017)."""

from __future__ import annotations

from .recipe import SPLITS, Copy, Home, Limits, Part, Recipe, Steps

JAVA = (
    "https://raw.githubusercontent.com/xing-hu/TL-CodeSum/"
    "f2c176eb8f7ad7bfb1d7d47efac807f9d21c1085/data"
)
JAVA_FILES = {
    "valid.token.code": (
        4_063_597,
        "e2f6a12244ea0f1078fc10ad3db3fce61bce3e0182e14b334e280475845d7477",
    ),
    "valid.token.nl": (
        873_028,
        "b5e729fd0f35f07a8c8ef32bd141b2c0db1a536021eed2b3db6bfaffc659508c",
    ),
    "test.token.code": (
        4_109_556,
        "45200ca3034a13da30de45f65204d1ee315ddf2774718d1c2953f6b7de267eef",
    ),
    "test.token.nl": (862_021, "8423e91de9fabef049b350c58df4772539cc14b6a7b35129e9ef877cdf52efaa"),
}
PYTHON = (
    "https://raw.githubusercontent.com/EdinburghNLP/code-docstring-corpus/"
    "385207e41898dece913cafb8a5b31144014db29d/parallel-corpus"
)
PYTHON_FILES = {
    "data_ps.descriptions.valid": (
        "1fdbe7923bc0b57b5178de4c5de95a35483687122afcf5481ba1f7143a293fa1"
    ),
    "data_ps.descriptions.test": "1536dcaf3086e577dc1f8e2d0b192a609ed4531f7ec4a2fe7fe6d941eced7ca9",
    "data_ps.declbodies.valid": "283a07e28e331540062b29692f5d8e8992e03592093ac45bd31e5b238489d9ce",
    "data_ps.declbodies.test": "03ab25f471c216ea19d6c4a14b41ea339b9dc5c134359cbda5091856ac955dc9",
}
LANGUAGES = ("text", "code")


def java() -> Recipe:
    """The released split; tokens as released, with a number before each line."""
    homes = []
    for split in SPLITS:
        for side in ("nl", "code"):
            name = f"{split}.token.{side}"
            size, sha256 = JAVA_FILES.get(name, (None, ""))
            copy = Copy(f"{JAVA}/{split}/{name}", size, ("sha256", sha256) if sha256 else None)
            homes.append(Home((copy,), ((name,),)))
    steps = Steps(tokenizer="blanks")
    return Recipe(
        *LANGUAGES,
        homes=tuple(homes),
        parts={
            split: (Part(split, f"{split}.token.nl", f"{split}.token.code", "numbered"),)
            for split in SPLITS
        },
        steps=(steps, steps),
        merges=10_000,
        reference="tokens",
        counts={"train": 69_708, "valid": 8_714, "test": 8_714},
        counted_by="the release",
    )


def python() -> Recipe:
    """The released split; declarations and bodies, cut into Moses tokens as its authors do."""
    homes = []
    for split in SPLITS:
        for side in ("descriptions", "declbodies"):
            name = f"data_ps.{side}.{split}"
            packed = ".gz" if name == "data_ps.declbodies.train" else ""
            sha256 = PYTHON_FILES.get(name, "")
            copy = Copy(f"{PYTHON}/{name}{packed}", None, ("sha256", sha256) if sha256 else None)
            homes.append(Home((copy,), ((name,),)))
    steps = Steps(escaped=False)
    return Recipe(
        *LANGUAGES,
        homes=tuple(homes),
        parts={
            split: (Part(split, f"data_ps.descriptions.{split}", f"data_ps.declbodies.{split}"),)
            for split in SPLITS
        },
        steps=(steps, steps),
        merges=10_000,
        limits=Limits(2, 400, 9),
        reference="tokens",
        counts={"valid": 2_000, "test": 2_000},
        counted_by="the release",
    )


def code(pair: tuple[str, ...], variant: str = "") -> Recipe:
    """Code generation in the programming language that takes the place of a pair."""
    return {"java": java, "python": python}[pair[0]]()
