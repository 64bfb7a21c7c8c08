CREATE TABLE t (id integer PRIMARY KEY, a integer, b bigint, c smallint, f double precision, r real, n numeric, d numeric(10,2), s text, v varchar(5), flag boolean, day date, ts timestamp, tz timestamptz, iv interval, raw bytea)
INSERT INTO t VALUES (1, 10, 10000000000, 3, 1.5, 0.25, 1.5, 12.34, 'abc', 'xyz', true, '2020-02-29', '2020-02-29 12:34:56.789', '2020-02-29 12:34:56+00', '1 day 02:03:04', '\x0102'), (2, -7, -3, -2, -0.1, 1e10, -2.25, -0.05, 'Hello World', 'ab', false, '1999-12-31', '1999-12-31 23:59:59', '2000-01-01 01:00:00+02', '-1 mons', ''), (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL), (4, 0, 0, 0, 0, 0, 0, 0, '', '', true, '1970-01-01', '1970-01-01 00:00:00', '1970-01-01 00:00:00+00', '00:00:00', '\x00')
CREATE TABLE u (id integer, t_id integer, x integer, name text)
INSERT INTO u VALUES (1, 1, 5, 'one'), (2, 1, 7, 'two'), (3, 2, NULL, 'three'), (4, NULL, 9, NULL), (5, 2, 1, 'five')
CREATE TABLE w (k integer NOT NULL DEFAULT 7, m text DEFAULT 'none', z numeric(6,2) DEFAULT 1.5, q date)
CREATE VIEW tv AS SELECT id, a + 1 AS a1, s FROM t WHERE id < 4
