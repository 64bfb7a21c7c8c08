"""The materialized views over the flights.

Each is a query that PostgreSQL takes too. `order` names columns that order the rows totally; `floats` those whose values are
floating point, compared within 1e-9.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class View:
    """A view, how its rows are ordered, and which of its columns are floats."""

    name: str
    query: str
    order: tuple
    floats: tuple = ()

    def create(self):
        """The statement for Levee."""
        return f"CREATE MATERIALIZED VIEW {self.name} AS {self.query}"

    def read(self):
        """The rows of the view, in a total order."""
        return f"SELECT * FROM {self.name} ORDER BY {', '.join(self.order)}"


DELAY_BY_CARRIER_DAY = View(
    "delay_by_carrier_day",
    """SELECT carrier, month, day, count(*) AS flights, count(dep_delay) AS departed, sum(dep_delay) AS minutes,
              avg(dep_delay) AS dep_delay, max(arr_delay) AS worst
       FROM flights GROUP BY carrier, month, day""",
    ("carrier", "month", "day"),
)

DELAY_BY_MANUFACTURER = View(
    "delay_by_manufacturer",
    """SELECT p.manufacturer, a.name AS airline, count(*) AS flights, avg(f.arr_delay) AS arr_delay
       FROM flights f LEFT JOIN planes p ON f.tailnum = p.tailnum JOIN airlines a ON f.carrier = a.carrier
       GROUP BY p.manufacturer, a.name""",
    ("manufacturer", "airline"),
)

TOP_ROUTES = View(
    "top_routes",
    """SELECT month, place, origin, dest, flights
       FROM (SELECT month, origin, dest, flights,
                    row_number() OVER (PARTITION BY month ORDER BY flights DESC, origin, dest) AS place
             FROM (SELECT month, origin, dest, count(*) AS flights
                   FROM flights GROUP BY month, origin, dest) AS routes) AS ranked
       WHERE place <= 10""",
    ("month", "place"),
)

DELAY_BY_WIND = View(
    "delay_by_wind",
    """SELECT band, count(*) AS flights, count(dep_delay) AS departed, avg(dep_delay) AS dep_delay
       FROM (SELECT CASE WHEN w.wind_speed IS NULL THEN 'unknown' WHEN w.wind_speed < 5 THEN '0 calm'
                         WHEN w.wind_speed < 15 THEN '1 breeze' WHEN w.wind_speed < 25 THEN '2 strong'
                         ELSE '3 storm' END AS band, f.dep_delay
             FROM flights f JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour) AS flown
       GROUP BY band""",
    ("band",),
)

AIRPORTS_WITHOUT_FLIGHTS = View(
    "airports_without_flights",
    """SELECT faa, name FROM airports a
       WHERE NOT EXISTS (SELECT 1 FROM flights f WHERE f.dest = a.faa)
         AND NOT EXISTS (SELECT 1 FROM flights f WHERE f.origin = a.faa)""",
    ("faa",),
)

CARRIERS = View(
    "carriers",
    """SELECT carrier, count(*) AS days, sum(flights) AS flights, sum(minutes) AS minutes, max(worst) AS worst
       FROM delay_by_carrier_day GROUP BY carrier""",
    ("carrier",),
)

DEMO = [
    DELAY_BY_CARRIER_DAY,
    DELAY_BY_MANUFACTURER,
    TOP_ROUTES,
    DELAY_BY_WIND,
    AIRPORTS_WITHOUT_FLIGHTS,
    CARRIERS,
]

COMPARED = [
    *DEMO,
    View(
        "totals",
        """SELECT count(*) AS flights, count(tailnum) AS tails, sum(distance) AS miles, min(arr_delay) AS best,
                  max(arr_delay) AS worst, avg(air_time) AS air_time, min(tailnum) AS first_tail,
                  count(*) FILTER (WHERE dep_time IS NULL) AS cancelled
           FROM flights""",
        ("flights",),
    ),
    View(
        "weather_means",
        """SELECT origin, month, count(*) AS hours, avg(temp) AS temp, sum(precip) AS precip, min(pressure) AS lowest,
                  max(wind_gust) AS gust, avg(wind_speed * 1.609344) AS wind_kmh
           FROM weather GROUP BY origin, month""",
        ("origin", "month"),
        ("temp", "precip", "lowest", "gust", "wind_kmh"),
    ),
    View(
        "destinations",
        "SELECT DISTINCT origin, dest FROM flights",
        ("origin", "dest"),
    ),
    View(
        "planes_a_carrier",
        """SELECT carrier, count(DISTINCT tailnum) AS planes, count(DISTINCT dest) AS dests
           FROM flights GROUP BY carrier HAVING count(*) > 1000""",
        ("carrier",),
    ),
    View(
        "longest_delays",
        """SELECT id, carrier, flight, arr_delay, time_hour FROM flights WHERE arr_delay IS NOT NULL
           ORDER BY arr_delay DESC, id LIMIT 25 OFFSET 5""",
        ("arr_delay DESC", "id"),
    ),
    View(
        "planes_and_flights",
        """SELECT coalesce(p.tailnum, f.tailnum) AS tailnum, p.model, f.flights
           FROM planes p FULL JOIN (SELECT tailnum, count(*) AS flights FROM flights GROUP BY tailnum) AS f
             ON p.tailnum = f.tailnum""",
        ("tailnum", "model", "flights"),
    ),
    View(
        "unknown_planes",
        """SELECT f.tailnum, count(*) AS flights FROM flights f
           WHERE f.tailnum IS NOT NULL AND f.tailnum NOT IN (SELECT tailnum FROM planes)
           GROUP BY f.tailnum""",
        ("tailnum",),
    ),
    View(
        "above_carrier_average",
        """SELECT f.id, f.carrier, f.arr_delay FROM flights f
           WHERE f.month = 2 AND f.day = 9 AND f.arr_delay > 30 +
             (SELECT avg(g.arr_delay) FROM flights g WHERE g.carrier = f.carrier AND g.month = 2)""",
        ("id",),
    ),
    View(
        "ends",
        """SELECT airport, count(*) AS flights FROM
             (SELECT origin AS airport FROM flights UNION ALL SELECT dest FROM flights) AS both_ends
           GROUP BY airport""",
        ("airport",),
    ),
    View(
        "old_planes",
        """SELECT carrier, count(*) AS flights FROM flights
           WHERE tailnum IN (SELECT tailnum FROM planes WHERE year < 1985) GROUP BY carrier""",
        ("carrier",),
    ),
    View(
        "storms",
        """SELECT w.origin, w.time_hour, w.wind_gust, f.id, f.arr_delay
           FROM weather w LEFT JOIN flights f
             ON w.origin = f.origin AND w.time_hour = f.time_hour AND f.dep_delay > 60
           WHERE w.wind_gust > 45""",
        ("origin", "time_hour", "id"),
        ("wind_gust",),
    ),
    View(
        "airports_by_name",
        """SELECT upper(a.name) AS name, length(a.name) AS letters, a.alt, f.flights
           FROM airports a RIGHT JOIN (SELECT dest, count(*) AS flights FROM flights GROUP BY dest) AS f
             ON a.faa = f.dest""",
        ("name", "letters", "alt", "flights"),
    ),
]
