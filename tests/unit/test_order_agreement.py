"""scripts/order_agreement.py against figures worked out by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import order_agreement  # noqa: E402

HEADER = "id\torder\ttarget_length\tbits_scf\tbits_fcs\n"
ONE = HEADER + "0\tscf\t4\t1.0\t2.0\n1\tscf\t2\t3.0\t2.0\n2\tfcs\t2\t1.0\t4.0\n"
OTHER = HEADER + "0\tfcs\t4\t2.0\t3.0\n1\tfcs\t2\t5.0\t5.5\n2\tscf\t2\t2.0\t1.0\n"


@pytest.fixture
def tables(tmp_path) -> list[Path]:
    paths = [tmp_path / "one.tsv", tmp_path / "other.tsv"]
    for path, text in zip(paths, (ONE, OTHER), strict=True):
        path.write_text(text)
    return paths


def test_figures(tables):
    found = order_agreement.compare(*map(order_agreement.read, tables))
    assert found["agreement"] == pytest.approx(1 / 3)  # best: scf fcs scf, and scf scf fcs
    assert found["chance"] == pytest.approx((2 * 2 + 1 * 1) / 9)
    differences = np.array([[-1.0, 1.0, -3.0], [-1.0, -0.5, 1.0]])
    assert found["correlation"] == pytest.approx(np.corrcoef(differences)[0, 1])
    assert found["best"] == pytest.approx((2 * 4 + 5 * 2 + 2 * 2) / 8)
    assert found["predictor"] == pytest.approx((3 * 4 + 5.5 * 2 + 2 * 2) / 8)
    assert found["one"] == pytest.approx((2 * 4 + 5.5 * 2 + 2 * 2) / 8)
    assert found["oracle"] == pytest.approx((2 * 4 + 5 * 2 + 1 * 2) / 8)


def test_a_model_agrees_with_itself(tables):
    table = order_agreement.read(tables[0])
    found = order_agreement.compare(table, table)
    assert found["agreement"] == 1
    assert found["correlation"] == pytest.approx(1)
    assert found["one"] == found["oracle"]


def test_the_command(tables):
    words = [sys.executable, SCRIPTS / "order_agreement.py", *tables]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "same best order  33.3% (by chance 55.6%)" in done.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEADER + "0\tscf\t4\t1.0\t2.0\n",
            "must be of the same set, but have other sentences or references (3 and 1",
        ),
        (OTHER.replace("2\tscf", "7\tscf"), "must be of the same set"),
        (OTHER.replace("fcs", "csf"), "must be of the same orders, but have scf,fcs and scf,csf"),
        (OTHER.replace("0\tfcs", "0\tcfs"), "other.tsv must be an orders.tsv of iot-report"),
        (OTHER + "3\tscf\n", "other.tsv must be an orders.tsv of iot-report"),
        ("\0\n", "other.tsv must be an orders.tsv of iot-report"),
        ("id\torder\n0\tscf\n", "must be an orders.tsv of iot-report"),
        ("", "must be an orders.tsv of iot-report"),
    ],
)
def test_other_tables_are_refused_in_one_line(tables, text, message):
    tables[1].write_text(text)
    words = [sys.executable, SCRIPTS / "order_agreement.py", *tables]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
