"""Installs iot_fairseq: ``pip install .``, or ``pip install -e '.[test]'`` to work on it."""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = next(
    line.split('"')[1]
    for line in (ROOT / "iot_fairseq" / "__init__.py").read_text().splitlines()
    if line.startswith("__version__")
)

setup(
    name="iot_fairseq",
    version=VERSION,
    description="Transformers whose structure adapts to the input, as a fairseq plugin",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["iot_fairseq", "iot_fairseq.*"]),
    package_data={"iot_fairseq.reports": ["page.html"]},
    python_requires=">=3.11,<3.13",
    install_requires=[
        "ve-fairseq==0.12.3",
        "torch>=2.6",
        "sacrebleu>=2.4",
        "sentencepiece",
        "numpy",
        "jinja2",
        "tabulate",
        "tqdm",
    ],
    extras_require={
        "recipes": ["sacremoses", "subword-nmt", "jieba"],
        "tensorboard": ["tensorboardX"],
        "benchmark": ["matplotlib"],
        "peers": ["ctranslate2"],
        "test": ["pytest", "hypothesis", "ruff", "PyYAML"],
    },
    entry_points={
        "console_scripts": [
            "iot-average=iot_fairseq.averaging:average_main",
            "iot-convert=iot_fairseq.conversion:convert_main",
            "iot-prune=iot_fairseq.pruning:prune_main",
            "iot-report=iot_fairseq.reports.report:report_main",
            "iot-compare=iot_fairseq.reports.compare:compare_main",
        ]
    },
)
