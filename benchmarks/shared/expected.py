"""The demo's views, worked out from the CSV files in plain Python: the answers that Levee must come to."""

from collections import Counter, defaultdict
from fractions import Fraction

from shared import flights, views

TOLERANCE = Fraction(1, 10**9)


class Delay:
    """Count, sum and maximum of delays, some of them unknown."""

    def __init__(self):
        self.flights = 0
        self.known = 0
        self.minutes = 0
        self.worst = None

    def add(self, delay, worst=None):
        """One more flight."""
        self.flights += 1
        if delay is not None:
            self.known += 1
            self.minutes += delay
        if worst is not None:
            self.worst = worst if self.worst is None else max(self.worst, worst)

    @property
    def mean(self):
        """Mean of the known delays, exactly."""
        return Fraction(self.minutes, self.known) if self.known else None

    @property
    def sum(self):
        """SQL's sum: NULL if there is nothing to add."""
        return self.minutes if self.known else None


def number(text):
    """An integer, or None for NULL."""
    return None if text is None else int(text)


def wind_band(speed):
    """Band of a wind speed as the view names it."""
    if speed is None:
        return "unknown"
    bands = [(5, "0 calm"), (15, "1 breeze"), (25, "2 strong")]
    return next((name for limit, name in bands if float(speed) < limit), "3 storm")


def compute(data, limit=None):
    """View name to the set of rows that it must hold after the first `limit` flights."""
    airlines = {row["carrier"]: row["name"] for row in flights.rows(data, "airlines")}
    makers = {row["tailnum"]: row["manufacturer"] for row in flights.rows(data, "planes")}
    winds = {(row["origin"], row["time_hour"]): row["wind_speed"] for row in flights.rows(data, "weather")}
    airports = {row["faa"]: row["name"] for row in flights.rows(data, "airports")}
    days, by_maker, by_wind = defaultdict(Delay), defaultdict(Delay), defaultdict(Delay)
    routes, used = Counter(), set()
    for row in flights.rows(data, "flights", limit):
        month, day = int(row["month"]), int(row["day"])
        departure, arrival = number(row["dep_delay"]), number(row["arr_delay"])
        days[row["carrier"], month, day].add(departure, arrival)
        if row["carrier"] in airlines:
            by_maker[makers.get(row["tailnum"]), airlines[row["carrier"]]].add(arrival)
        hour = (row["origin"], row["time_hour"])
        if hour in winds:
            by_wind[wind_band(winds[hour])].add(departure)
        routes[month, row["origin"], row["dest"]] += 1
        used |= {row["origin"], row["dest"]}
    return {
        "delay_by_carrier_day": [(*k, d.flights, d.known, d.sum, d.mean, d.worst) for k, d in days.items()],
        "delay_by_manufacturer": [(*k, d.flights, d.mean) for k, d in by_maker.items()],
        "top_routes": top_routes(routes),
        "delay_by_wind": [(band, d.flights, d.known, d.mean) for band, d in by_wind.items()],
        "airports_without_flights": [(faa, name) for faa, name in airports.items() if faa not in used],
        "carriers": carriers(days),
    }


def top_routes(routes):
    """The ten most flown routes of each month, ties by name."""
    months = defaultdict(list)
    for (month, origin, dest), count in routes.items():
        months[month].append((-count, origin, dest))
    rows = []
    for month, ranked in months.items():
        for place, (count, origin, dest) in enumerate(sorted(ranked)[:10], start=1):
            rows.append((month, place, origin, dest, -count))
    return rows


def carriers(days):
    """Days folded into carriers."""
    folded = defaultdict(list)
    for (carrier, _, _), delay in days.items():
        folded[carrier].append(delay)
    rows = []
    for carrier, parts in folded.items():
        sums = [part.sum for part in parts if part.sum is not None]
        worsts = [part.worst for part in parts if part.worst is not None]
        total = sum(part.flights for part in parts)
        rows.append((carrier, len(parts), total, sum(sums) if sums else None, max(worsts, default=None)))
    return rows


def same(value, want):
    """Equal, means within a relative 1e-9."""
    if isinstance(want, Fraction):
        return value is not None and abs(Fraction(value) - want) <= TOLERANCE * max(1, abs(want))
    return value == want


def differences(rows, wanted, order):
    """Rows that only one side has, at most a few, as text; `order` gives how many leading columns identify a row."""
    by_key = {tuple(row[:order]): row for row in rows}
    found = [] if len(by_key) == len(rows) else [f"{len(rows) - len(by_key)} rows are doubled"]
    for want in wanted:
        row = by_key.pop(tuple(want[:order]), None)
        if row is None:
            found.append(f"missing {want}")
        elif not all(same(value, wish) for value, wish in zip(row, want, strict=True)):
            found.append(f"{row} should be {want}")
    found += [f"unexpected {row}" for row in by_key.values()]
    return found


def check(connection, data, limit=None):
    """View name to what is wrong with it; all lists empty: all is right."""
    wanted = compute(data, limit)
    verdict = {}
    for view in views.DEMO:
        rows = connection.execute(f"SELECT * FROM {view.name}").fetchall()
        verdict[view.name] = differences(rows, wanted[view.name], len(view.order))
    return verdict
