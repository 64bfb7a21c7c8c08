"""Pure parts of the demo and of the comparison: `python -m unittest discover benchmarks/tests`."""

import sys
import tempfile
import unittest
from collections import Counter
from fractions import Fraction
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "postgres"), str(ROOT / "demo")]

import compare
import demo
from shared import expected, flights, views


class TimeOrder(unittest.TestCase):
    def test_orders_by_scheduled_time_then_place(self):
        lines = [
            "2013,1,1,x,15,2013-01-01T11:00:00Z",
            "2013,1,1,a,9,2013-01-01T10:00:00Z",
            "2013,1,1,b,9,2013-01-01T10:00:00Z",
            "2013,1,1,c,10,2013-01-01T10:00:00Z",
        ]
        ordered = [number for number, _ in sorted(enumerate(lines), key=flights.time_order)]
        self.assertEqual(ordered, [1, 2, 3, 0])


class Expected(unittest.TestCase):
    def test_unknown_delays_count_as_flights_only(self):
        delay = expected.Delay()
        self.assertIsNone(delay.mean)
        self.assertIsNone(delay.sum)
        delay.add(None, None)
        delay.add(1, 7)
        delay.add(2, None)
        self.assertEqual((delay.flights, delay.known, delay.sum, delay.mean, delay.worst), (3, 2, 3, Fraction(3, 2), 7))

    def test_wind_bands_are_half_open(self):
        bands = [expected.wind_band(speed) for speed in (None, "0", "4.99", "5", "15", "25")]
        self.assertEqual(bands, ["unknown", "0 calm", "0 calm", "1 breeze", "2 strong", "3 storm"])

    def test_routes_tie_by_name_and_stop_at_ten(self):
        routes = Counter({(1, "EWR", f"D{i:02}"): 5 for i in range(12)})
        rows = expected.top_routes(routes)
        self.assertEqual([row[1] for row in rows], list(range(1, 11)))
        self.assertEqual(rows[0], (1, 1, "EWR", "D00", 5))

    def test_differences_name_each_kind(self):
        self.assertEqual(expected.differences([("a", 1.5)], [("a", Fraction(3, 2))], 1), [])
        found = expected.differences([("a", 1), ("c", 1)], [("a", 2), ("b", 1)], 1)
        self.assertEqual(len(found), 3)
        self.assertEqual(len(expected.differences([("a", 1), ("a", 1)], [("a", 1)], 1)), 1)


class Compare(unittest.TestCase):
    view = views.View("v", "", ("k",), ("f",))

    def test_floats_within_tolerance_texts_exactly(self):
        theirs = (["k", "f"], [25, 701], [["a", "0.1"]])
        self.assertEqual(compare.differences(self.view, (["k", "f"], [25, 701], [["a", "0.10000000000000001"]]), theirs), [])
        self.assertEqual(len(compare.differences(self.view, (["k", "f"], [25, 701], [["a", "0.11"]]), theirs)), 1)
        self.assertEqual(len(compare.differences(self.view, (["k", "f"], [25, 701], [["b", "0.1"]]), theirs)), 1)
        self.assertEqual(len(compare.differences(self.view, (["k", "f"], [20, 701], []), theirs)), 2)
        self.assertFalse(compare.close(None, "0"))

    def test_literals_are_quoted(self):
        self.assertEqual(compare.literal("Martha's"), "'Martha''s'")
        self.assertEqual(compare.literal(None), "NULL")


class Changes(unittest.TestCase):
    def test_a_seed_repeats_and_deleted_rows_are_remembered(self):
        with tempfile.TemporaryDirectory() as name:
            data = Path(name)
            flight = ",".join(["%d", "2013", "1", "1"] + ["1"] * 15 + ["2013-01-01T10:00:00Z"])
            (data / "flights.csv").write_text("".join(flight % number + "\n" for number in range(1, 101)))
            (data / "planes.csv").write_text("tailnum,year\n" + "".join(f"N{i},NA\n" for i in range(20)))
            (data / "weather.csv").write_text("origin,time_hour\nEWR,t1\nEWR,t2\nJFK,t1\nLGA,t1\n")
            (data / "airlines.csv").write_text("carrier,name\nUA,United\n")
            first, second = (compare.Changes(7, data, None) for _ in range(2))
            changes = [first.next() for _ in range(60)]
            self.assertEqual(changes, [second.next() for _ in range(60)])
            deletes = sum(statement.startswith("DELETE") for statement, _ in changes)
            self.assertGreater(deletes, 0)
            self.assertEqual(sum(len(rows) for rows in first.deleted.values()), deletes)


class Screen(unittest.TestCase):
    def test_null_is_blank(self):
        self.assertEqual((demo.blank(None), demo.blank(3)), ("", "3"))


if __name__ == "__main__":
    unittest.main()
