SELECT 1
SELECT 2147483647
SELECT 2147483648
SELECT 9223372036854775807
SELECT 9223372036854775808
SELECT -2147483648
SELECT 1.5
SELECT 1.50
SELECT 1e3
SELECT 0.000001
SELECT 'x'
SELECT NULL
SELECT true
SELECT true, false, NULL::boolean
SELECT 1 AS one, 2 two, 3 "Three"
SELECT 1, 1, 1
SELECT a, a FROM t WHERE id = 1
SELECT t.id, u.id FROM t JOIN u ON t.id = u.t_id ORDER BY 1, 2
SELECT 1 + 1
SELECT 2147483647 + 1
SELECT 2147483647::bigint + 1
SELECT 9223372036854775807 + 1
SELECT -2147483647 - 2
SELECT 65536 * 65536
SELECT 32767::smallint + 1::smallint
SELECT 7 / 2
SELECT -7 / 2
SELECT 7 % 3, -7 % 3
SELECT 1 / 0
SELECT 1 % 0
SELECT 1.0 / 0
SELECT 1::float8 / 0
SELECT 1::numeric / 3
SELECT 10::numeric / 3
SELECT 1000000::numeric / 3
SELECT 1.0 / 3.0
SELECT 2 / 3.0
SELECT 100.00 / 7
SELECT 1.23 * 4.56
SELECT 1.23 + 4.5
SELECT 1.23 - 4.5
SELECT 5.5 % 2
SELECT -5.5 % 2
SELECT 1 + 1.5
SELECT 1::float8 + 1.5
SELECT 1.5::real + 1
SELECT 0.1::float8 + 0.2::float8
SELECT 1e300::float8 * 1e300::float8
SELECT 1e-300::float8 * 1e-300::float8
SELECT 2 ^ 10
SELECT -5, - 5, -(-5)
SELECT +5
SELECT -a, -b, -f, -n FROM t WHERE id = 1
SELECT abs(-5), abs(-5.5), abs(-5.5::float8)
SELECT round(2.5), round(-2.5), round(3.5)
SELECT round(2.5::float8), round(3.5::float8)
SELECT round(2.345, 2), round(-2.345, 2), round(1234.5, -2)
SELECT round(12.345::float8, 2)
SELECT trunc(2.9), trunc(-2.9), trunc(2.987, 2)
SELECT ceil(1.2), floor(1.8), ceil(-1.2), floor(-1.8)
SELECT ceil(1.2::float8), floor(-1.8::float8)
SELECT sign(-3), sign(2.5)
SELECT sqrt(2::float8), power(2::float8, 3)
SELECT mod(7, 3), mod(-7, 3)
SELECT '5'::int, ' 42 '::int, '-7'::bigint
SELECT 'x'::int
SELECT '99999999999'::int
SELECT ''::int
SELECT '1.5'::int
SELECT '1.5'::numeric, '1.5'::float8, '1e3'::float8
SELECT 'abc'::numeric
SELECT 'abc'::float8
SELECT '1e400'::float8
SELECT 1.5::int, 2.5::int, -1.5::int, 0.5::int
SELECT 1.5::float8::int, 2.5::float8::int, 3.5::float8::int
SELECT 300::smallint, 40000::smallint
SELECT 3e9::float8::int
SELECT 3000000000::int
SELECT 12.345::numeric(5,2), 12.355::numeric(5,2)
SELECT 12345.6::numeric(5,2)
SELECT 't'::boolean, 'yes'::boolean, 'off'::boolean, '1'::boolean, ' TRUE '::boolean
SELECT 'maybe'::boolean
SELECT 1::boolean, 0::boolean, true::int
SELECT true::text, 1::text, 1.50::text, 1.5::float8::text, 1e20::float8::text, 1e-7::float8::text
SELECT 'abc'::varchar(2), 'abc'::varchar
SELECT '2020-01-15'::date, DATE '2020-01-15'
SELECT '2020-13-01'::date
SELECT '2020-02-30'::date
SELECT 'yesterdayish'::date
SELECT '2020-01-15 10:20:30'::timestamp, TIMESTAMP '2020-01-15T10:20:30.123456'
SELECT '2020-01-15 10:20:30+02'::timestamptz, '2020-01-15'::timestamptz
SELECT '25:00'::timestamp
SELECT '1 day'::interval, INTERVAL '1 year 2 months 3 days 04:05:06.7'
SELECT INTERVAL '10' SECOND, INTERVAL '2' DAY, INTERVAL '-3 hours'
SELECT INTERVAL '1.5 hours', INTERVAL '90 minutes', INTERVAL 'P1DT2H'
SELECT 'soon'::interval
SELECT '\x0aff'::bytea, 'abc'::bytea
SELECT DATE '2020-01-31' + 1, DATE '2020-01-31' - 1, DATE '2020-03-01' - DATE '2020-02-01'
SELECT DATE '2020-01-31' + INTERVAL '1 month', DATE '2020-01-31' - INTERVAL '1 day'
SELECT TIMESTAMP '2020-01-31 10:00' + INTERVAL '1 month 2 hours'
SELECT TIMESTAMP '2020-03-01' - TIMESTAMP '2020-02-01 12:00'
SELECT TIMESTAMP '2020-02-01' - TIMESTAMP '2020-03-01 12:00'
SELECT INTERVAL '1 day' + INTERVAL '2 hours', INTERVAL '1 day' - INTERVAL '30 hours'
SELECT INTERVAL '1 day' * 2, 2 * INTERVAL '90 minutes', INTERVAL '1 day' / 2, INTERVAL '1 month' * 1.5
SELECT TIMESTAMP '2020-01-01' + '1 day'
SELECT INTERVAL '1 month' = INTERVAL '30 days', INTERVAL '1 day' < INTERVAL '25 hours'
SELECT extract(year FROM DATE '2020-02-29'), extract(month FROM TIMESTAMP '2020-02-29 12:34:56.789')
SELECT extract(second FROM TIMESTAMP '2020-02-29 12:34:56.789'), extract(epoch FROM TIMESTAMP '2020-02-29 12:34:56.789')
SELECT extract(dow FROM DATE '2020-02-29'), extract(isodow FROM DATE '2020-03-01'), extract(doy FROM DATE '2020-12-31'), extract(week FROM DATE '2021-01-01')
SELECT extract(milliseconds FROM TIMESTAMP '2020-02-29 12:34:56.789'), extract(microseconds FROM TIMESTAMP '2020-02-29 12:34:56.789')
SELECT extract(hour FROM INTERVAL '26 hours 3 minutes'), extract(epoch FROM INTERVAL '1 day 1 second')
SELECT extract(quarter FROM DATE '2020-05-01'), extract(century FROM DATE '2000-12-31'), extract(decade FROM DATE '1999-01-01')
SELECT extract(hour FROM DATE '2020-01-01')
SELECT extract(fortnight FROM TIMESTAMP '2020-01-01')
SELECT date_part('hour', TIMESTAMP '2020-02-29 12:34:56.789'), date_part('epoch', TIMESTAMP '2020-02-29 12:34:56.789')
SELECT date_trunc('hour', TIMESTAMP '2020-02-29 12:34:56.789'), date_trunc('month', TIMESTAMP '2020-02-29 12:34:56'), date_trunc('week', TIMESTAMP '2020-02-29 12:34:56')
SELECT date_trunc('day', TIMESTAMPTZ '2020-02-29 12:34:56+00'), date_trunc('year', DATE '2020-02-29')
SELECT date_bin('15 minutes', TIMESTAMP '2020-02-29 12:34:56', TIMESTAMP '2020-01-01')
SELECT date_bin('15 minutes', TIMESTAMP '1969-12-31 23:59:00', TIMESTAMP '1970-01-01')
SELECT to_char(TIMESTAMP '2020-02-09 03:04:05.678', 'YYYY-MM-DD HH24:MI:SS.MS'), to_char(TIMESTAMP '2020-02-09 15:04:05', 'FMDD Mon YY HH12:MI AM')
SELECT to_char(DATE '2020-02-09', 'Day, DDth Month YYYY')
SELECT age(TIMESTAMP '2020-03-01', TIMESTAMP '2019-01-31')
SELECT make_date(2020, 2, 29), make_date(2021, 2, 29)
SELECT to_timestamp(1583000000.5)
SELECT 'a' || 'b', 'a' || 1, 1 || 'a', NULL || 'a'
SELECT 1 || 2
SELECT 'abc' LIKE 'a%', 'abc' NOT LIKE '_b_', 'ABC' ILIKE 'a%', 'a%c' LIKE 'a\%c'
SELECT 'abc' ~ '^a', 'abc' ~* 'B', 'abc' !~ 'z', 'abc' !~* 'B'
SELECT 'abc' SIMILAR TO 'a(b|c)%', 'abc' NOT SIMILAR TO 'abc'
SELECT 1 LIKE 'a'
SELECT upper('abc'), lower('ABC'), length('héllo'), substring('hello' from 2 for 3), substr('hello', 2), position('l' in 'hello')
SELECT trim('  a '), ltrim('xxa', 'x'), rtrim('axx', 'x'), btrim('xax', 'x'), trim(leading 'x' from 'xxa')
SELECT replace('aXa', 'X', 'b'), split_part('a,b,c', ',', 2), left('hello', 2), right('hello', 2), lpad('7', 3, '0'), rpad('7', 3, '.'), repeat('ab', 2), reverse('abc')
SELECT concat('a', 1, NULL, true), concat_ws('-', 'a', NULL, 'b')
SELECT initcap('hello world'), md5('a'), ascii('a'), chr(65), strpos('hello', 'l'), translate('abc', 'ab', 'xy'), starts_with('abc', 'ab')
SELECT regexp_replace('hello', 'l+', 'L'), regexp_replace('aaa', 'a', 'b', 'g')
SELECT char_length('abc'), octet_length('é'), bit_length('a')
SELECT coalesce(NULL, 1), coalesce(NULL, NULL, 'x'), nullif(1, 1), nullif(1, 2), greatest(1, 3, 2), least(1.5, 1)
SELECT coalesce(a, 0.5) FROM t WHERE id IN (1, 3) ORDER BY id
SELECT CASE WHEN true THEN 1 ELSE 2 END, CASE 1 WHEN 1 THEN 'a' ELSE 'b' END, CASE WHEN false THEN 1 END
SELECT CASE WHEN a > 0 THEN 1 ELSE 2.5 END FROM t WHERE id < 3 ORDER BY id
SELECT CASE WHEN true THEN 1 ELSE 'x' END
SELECT CASE WHEN 1 THEN 2 END
SELECT CASE a WHEN 10 THEN 'ten' WHEN -7 THEN 'minus seven' ELSE s END FROM t ORDER BY id
SELECT x + 1 FROM (SELECT CASE WHEN a > 0 THEN 1 ELSE 2.5 END AS x FROM t WHERE id < 3) y ORDER BY 1
SELECT a + b, a + c, b + c, a + f, a + n, a + d, f + r, r + c FROM t WHERE id = 1
SELECT a * d, d * d, n * n, d / a, n / 3, d % a FROM t WHERE id = 1
SELECT a, b, c, f, r, n, d FROM t ORDER BY id
SELECT s, v, flag, day, ts, tz, iv, raw FROM t ORDER BY id
SELECT id FROM t WHERE a = '10'
SELECT id FROM t WHERE day > '2000-01-01'
SELECT id FROM t WHERE ts >= '1999-12-31 23:59:59' ORDER BY id
SELECT id FROM t WHERE tz < '2000-01-01 00:00:00+00' ORDER BY id
SELECT id FROM t WHERE d > 0.5 AND n < 2
SELECT id FROM t WHERE f > '1.0'
SELECT id FROM t WHERE iv > '1 hour'
SELECT id FROM t WHERE flag
SELECT id FROM t WHERE flag = 'true' ORDER BY id
SELECT id FROM t WHERE flag IS NOT TRUE ORDER BY id
SELECT id FROM t WHERE a IS DISTINCT FROM 10 ORDER BY id
SELECT id FROM t WHERE a IS NOT DISTINCT FROM NULL
SELECT id FROM t WHERE a BETWEEN 0 AND 10 ORDER BY id
SELECT id FROM t WHERE a NOT BETWEEN '0' AND '10' ORDER BY id
SELECT id FROM t WHERE a IN (10, 0.0, '-7') ORDER BY id
SELECT id FROM t WHERE a NOT IN (10, 0) ORDER BY id
SELECT id FROM t WHERE a NOT IN (10, NULL) ORDER BY id
SELECT id FROM t WHERE s IN ('abc', 'x')
SELECT id FROM t WHERE day = ts::date ORDER BY id
SELECT id FROM t WHERE ts > day ORDER BY id
SELECT id FROM t WHERE s = 5
SELECT id FROM t WHERE a = s
SELECT id FROM t WHERE a = 'abc'
SELECT id FROM t WHERE a
SELECT id FROM t WHERE a AND flag
SELECT id FROM t WHERE NOT a
SELECT s + 1 FROM t
SELECT day + day FROM t
SELECT flag + 1 FROM t
SELECT -s FROM t
SELECT a IN ('x') FROM t
SELECT a IN (flag) FROM t
SELECT count(*) FROM t
SELECT count(a), count(DISTINCT flag) FROM t
SELECT sum(a), sum(b), sum(c), sum(f), sum(n), sum(d) FROM t
SELECT avg(a), avg(b), avg(c), avg(f), avg(n), avg(d) FROM t
SELECT avg(x) FROM u
SELECT avg(x) FROM (VALUES (1), (2), (4)) v(x)
SELECT avg(x) FROM (VALUES (100000), (200001)) v(x)
SELECT sum(x) FROM (VALUES (9223372036854775807), (9223372036854775807)) v(x)
SELECT min(a), max(a), min(s), max(day), min(n), max(iv) FROM t
SELECT sum(a) FROM t WHERE false
SELECT count(*), sum(a) FILTER (WHERE a > 0) FROM t
SELECT sum(DISTINCT x), avg(DISTINCT x) FROM u
SELECT bool_and(flag), bool_or(flag) FROM t
SELECT string_agg(name, ',' ORDER BY id) FROM u
SELECT t_id, count(*), sum(x) FROM u GROUP BY t_id ORDER BY t_id
SELECT t_id, count(*) FROM u GROUP BY 1 HAVING count(*) > 1 ORDER BY 1
SELECT t_id AS g, max(name) FROM u GROUP BY g ORDER BY g DESC
SELECT x % 2 AS parity, count(*) FROM u GROUP BY x % 2 ORDER BY 1
SELECT a FROM t GROUP BY t_id
SELECT a, count(*) FROM t
SELECT id, count(*) FROM t GROUP BY a
SELECT count(*) FROM t WHERE count(*) > 1
SELECT sum(sum(a)) FROM t
SELECT sum(s) FROM t
SELECT avg(flag) FROM t
SELECT DISTINCT flag FROM t ORDER BY flag
SELECT a FROM t ORDER BY a
SELECT a FROM t ORDER BY a DESC
SELECT a FROM t ORDER BY a NULLS FIRST
SELECT a FROM t ORDER BY 1 DESC NULLS LAST
SELECT a AS k FROM t ORDER BY k LIMIT 2
SELECT id FROM t ORDER BY id LIMIT ALL
SELECT id FROM t ORDER BY id OFFSET 2
SELECT id FROM t ORDER BY id FETCH FIRST 2 ROWS ONLY
SELECT id FROM t ORDER BY id LIMIT 1 OFFSET 1
SELECT id FROM t ORDER BY 3
SELECT id FROM t ORDER BY a + 1, id
SELECT * FROM u ORDER BY id
SELECT u.* FROM u WHERE id = 1
SELECT t.id, u.name FROM t LEFT JOIN u ON t.id = u.t_id ORDER BY 1, 2
SELECT t.id, u.id FROM t FULL JOIN u ON t.id = u.t_id ORDER BY 1, 2
SELECT * FROM (SELECT id, a FROM t) x JOIN (SELECT t_id AS id, x FROM u) y USING (id) ORDER BY 1, 3
SELECT count(*) FROM t CROSS JOIN u
SELECT id FROM t WHERE id IN (SELECT t_id FROM u) ORDER BY id
SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.t_id = t.id) ORDER BY id
SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.t_id = t.id) ORDER BY id
SELECT id, (SELECT sum(x) FROM u WHERE u.t_id = t.id) FROM t ORDER BY id
SELECT id, (SELECT max(x) FROM u) AS m FROM t ORDER BY id
SELECT (SELECT 1), (SELECT 'a' AS z)
SELECT count FROM (SELECT count(*) FROM t) c
SELECT "?column?" FROM (SELECT 1) c
SELECT a1, s FROM tv ORDER BY id
SELECT * FROM tv ORDER BY id
WITH c AS (SELECT id, a FROM t WHERE a > 0) SELECT * FROM c
WITH c(x) AS (SELECT id FROM t) SELECT max(x) FROM c
SELECT 1 UNION ALL SELECT 2 ORDER BY 1
SELECT 1 UNION SELECT 1
SELECT 1 UNION ALL SELECT 2.5 ORDER BY 1
SELECT id FROM t INTERSECT SELECT t_id FROM u ORDER BY 1
SELECT id FROM t EXCEPT SELECT t_id FROM u ORDER BY 1
SELECT 1, 2 UNION SELECT 3
VALUES (1, 'a'), (2, 'b')
SELECT * FROM (VALUES (1, 'a'), (2, NULL)) AS v(n, s) ORDER BY n
SELECT column1 FROM (VALUES (3)) v
SELECT * FROM generate_series(1, 3)
SELECT g FROM generate_series(1, 5, 2) g ORDER BY g
SELECT row_number() OVER (ORDER BY id), rank() OVER (ORDER BY flag) FROM t ORDER BY 1
SELECT id, sum(x) OVER (PARTITION BY t_id ORDER BY id) FROM u ORDER BY id
SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY t_id ORDER BY x DESC NULLS LAST) AS rn FROM u) q WHERE rn <= 1 ORDER BY id
SELECT lag(x) OVER (ORDER BY id), lead(x, 1) OVER (ORDER BY id) FROM u ORDER BY id
SELECT * FROM nosuch
SELECT nosuch FROM t
SELECT t.nosuch FROM t
SELECT z.id FROM t
SELECT id FROM t, u
SELECT nosuch(1)
SELECT upper(1, 2)
SELECT * FROM t, t
SELECT FROM WHERE
SELEC 1
SELECT 'abc
SELECT (1 + 2
SELECT 1 +
SELECT * FROM
SELECT a b c FROM t
SELECT ''''::text, E'a\nb', 'it''s'
SELECT 5 & 3, 5 | 3, 5 # 3, 1 << 3, 16 >> 2
SELECT 1 = 1.0, 1 < 2.5, '1' = 1, 1 <> 2, 1 != 2
SELECT NULL = NULL, NULL IS NULL, 1 IS NOT NULL
SELECT true AND NULL, false AND NULL, true OR NULL, NOT NULL
SELECT (id) FROM t WHERE id = 1
SELECT id::text FROM t WHERE id = 1
SELECT cast(id AS bigint) FROM t WHERE id = 1
SELECT a::date FROM t
SELECT day::int FROM t
SELECT count(*) AS "Total" FROM t
SELECT CURRENT_DATE IS NOT NULL, now() IS NOT NULL
SELECT sum(a) / count(*) FROM t
SELECT avg(a) * 2, avg(a) + 1, round(avg(a), 2) FROM t
SELECT sum(d) / 3, sum(n) * 1.5 FROM t
SELECT max(d) - min(d), max(f) / 2 FROM t
SELECT 1 WHERE 1 > 2
SELECT 12345678901234567890.123456789 + 1
SELECT '-12345678901234567890.123456789'::numeric
SELECT 0.1 + 0.2, 1.10 * 2, 3.00
SELECT f::numeric, r::numeric, n::int, d::int FROM t WHERE id < 3 ORDER BY id
SELECT n::text, d::text, f::text, r::text FROM t ORDER BY id
SELECT id FROM t WHERE a > ALL (SELECT x FROM u)
SELECT id FROM t WHERE s LIKE '%o%' OR v ~ '^x' ORDER BY id
SELECT length(s), s || v FROM t ORDER BY id
SELECT id FROM t WHERE length(s) > '3'
SELECT exp(1::float8), ln(2.718281828459045::float8), log(100::float8), pi()
SELECT t.id FROM t JOIN u ON t.id = u.t_id AND u.x > 5 ORDER BY 1
SELECT id FROM t WHERE (a, b) = (10, 10000000000)
SELECT distinct on (t_id) t_id, id FROM u ORDER BY t_id, id DESC
SELECT count(*) FROM (SELECT DISTINCT t_id, x FROM u) q
SELECT stddev(x), variance(x) FROM u
SELECT t_id, array_agg(id ORDER BY id) FROM u GROUP BY t_id ORDER BY t_id
SELECT generate_series(1, 3)
SELECT id, CASE WHEN a = 0 THEN 0 ELSE 100 / a END FROM t ORDER BY id
SELECT 100 / a FROM t WHERE id = 4
SELECT a * 1000000000 FROM t WHERE id = 1
SELECT to_char(1234.5, '9999.9')
SELECT 'a'::text < 'B'::text, 'a' < 'b', 'Z' < 'a'
SELECT overlay('abcdef' placing 'X' from 2 for 3)
SELECT num FROM (SELECT 1 AS num UNION ALL SELECT NULL) q ORDER BY 1
SELECT NULL UNION ALL SELECT 1 ORDER BY 1
SELECT x + 1 FROM (SELECT 1 AS x UNION ALL SELECT 2.5) y ORDER BY 1
WITH c AS (SELECT 1 AS x UNION ALL SELECT 2.5) SELECT x + 1 FROM c ORDER BY 1
SELECT 1 UNION SELECT 'x'
SELECT '2' UNION ALL SELECT 1 ORDER BY 1
SELECT a FROM t UNION ALL SELECT s FROM t
SELECT id, s FROM t WHERE id = 1 UNION ALL SELECT id, name FROM u WHERE id = 2 ORDER BY 1
SELECT id FROM t UNION ALL SELECT b FROM t ORDER BY 1 LIMIT 3
SELECT * FROM (SELECT 1)
SELECT count(*), count(*) FROM t
SELECT a + 1, a + 1 FROM t WHERE id = 1
SELECT *, a AS extra FROM (SELECT id, a FROM t) q ORDER BY id LIMIT 1
SELECT q.* FROM (SELECT t.id, u.id AS uid FROM t JOIN u ON u.t_id = t.id) q ORDER BY 2 LIMIT 1
SELECT id FROM t WHERE d = 12.34
SELECT id FROM t WHERE b > 5
SELECT id FROM t WHERE c = 3 AND r < 1
SELECT id FROM t WHERE tz = ts
SELECT id FROM t WHERE tz > day ORDER BY id
SELECT ts::date, tz::timestamp, ts::timestamptz, day::timestamp FROM t WHERE id = 1
SELECT extract(epoch FROM tz), date_trunc('hour', tz) FROM t WHERE id = 1
SELECT ts + iv, day + iv, ts - iv FROM t WHERE id < 3 ORDER BY id
SELECT raw = '\x0102', length(raw) FROM t WHERE id = 1
SELECT sum(x)::numeric / count(*) FROM u
SELECT 10 / 4.0, 10::numeric(5,2) / 3, 0.0001 / 3, 123456789 / 0.5
SELECT 5.1 / 5, 1.0 / 1, 7 / 7.0
SELECT sum(f) / 3 FROM t
SELECT round(sum(d) / count(d), 3) FROM t
SELECT id FROM t WHERE id = ANY (ARRAY[1, 2]) ORDER BY id
SELECT CASE WHEN a IS NULL THEN 'none' ELSE a::text END FROM t ORDER BY id
SELECT t.* FROM t JOIN u USING (id) WHERE t.id = 99
SELECT u1.name, u2.name FROM u u1 JOIN u u2 ON u1.t_id = u2.t_id AND u1.id < u2.id ORDER BY u1.id
SELECT name, id FROM u WHERE name LIKE 't%' ESCAPE '!' ORDER BY id
SELECT sum(x) OVER () FROM u ORDER BY 1 LIMIT 1
SELECT a, sum(a) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t ORDER BY id
SELECT rank() OVER (ORDER BY x NULLS LAST) AS r, dense_rank() OVER (ORDER BY t_id) AS d FROM u ORDER BY id
SELECT min(ts), max(tz), min(raw) FROM t
SELECT count(DISTINCT t_id), count(DISTINCT (t_id)) FROM u
SELECT t_id, x FROM u GROUP BY t_id, x ORDER BY t_id, x
SELECT u.t_id FROM u GROUP BY u.t_id HAVING sum(x) > 5 ORDER BY u.t_id
SELECT t_id + 1 FROM u GROUP BY t_id ORDER BY 1
SELECT upper(name), count(*) FROM u GROUP BY upper(name) ORDER BY 1
SELECT date_trunc('year', ts) AS y, count(*) FROM t GROUP BY 1 ORDER BY 1
SELECT DISTINCT ON (t_id) * FROM u ORDER BY t_id, id
SELECT bool_and(x > 0), bool_or(x > 8) FROM u
SELECT greatest(day, '2001-01-01'), least(ts, '2001-01-01') FROM t WHERE id = 1
SELECT nullif(s, ''), nullif(a, 0) FROM t ORDER BY id
SELECT position('b' IN s), strpos(s, 'o') FROM t ORDER BY id
SELECT interval '1 day' > interval '23 hours', interval '-1 day'::text
SELECT (DATE '2020-01-01', 1) = (DATE '2020-01-01', 1)
SELECT 1 IN (SELECT t_id FROM u), 99 NOT IN (SELECT t_id FROM u WHERE t_id IS NOT NULL)
SELECT id FROM t WHERE a = (SELECT max(a) FROM t)
SELECT id FROM t WHERE a = (SELECT a FROM t)
SELECT id FROM t WHERE (SELECT count(*) FROM u WHERE u.t_id = t.id) > 1 ORDER BY id
SELECT (SELECT name FROM u WHERE u.t_id = t.id ORDER BY u.id LIMIT 1) FROM t ORDER BY t.id
SELECT 'a' = 'a '::varchar(5), 'abc' > 'abd'
SELECT 0.00947917 / 9495, 47932::numeric / 66511, 56839.0 / 33870512123023, 74116.0 / 29261, 75643::numeric / 6555169632912
SELECT 5406.323 / 1030.46, 0.00098 / 81135, 4963.6536 / 0.00466136, 0.003005 / 818.477, 48343715603399.25 / 0.00609
SELECT 67101::numeric / 21390506252590.25, 73149.0 / 0.0034078, 66723576323713.0 / 95835, 48836749997086::numeric / 23649716638505, 7681.56 / 3978.5849
SELECT 21806.0 / 77328416246134.25, 77437776164617.25 / 50495972375626.25, 1509.07 / 2319.34, 63566::numeric / 2627.2, 0.0061020 / 6904.2
SELECT 95785921673619.25 / 55467021261572, 56357090143755::numeric / 673.42, 44572::numeric / 13420, 5365.655 / 9217, 6140.08 / 0.0095551
SELECT 16231309014955.25 / 68094574792040.25, 18890::numeric / 98262, 0.004791 / 26898, 0.00147 / 0.00979, 0.005189 / 0.0077217
SELECT 6131.67 / 8182.51, 5175.874 / 3662, 0.004728 / 0.0044778, 0.00081 / 4700.335, 4826.1 / 91899125246019.25
SELECT 86585.0 / 50927, 4779.85 / 89489132923039.25, 94612.0 / 56489499136367, 9930.1 / 5907.5363, 6115.1257 / 0.001568
SELECT 1867.0 / 69021, 4337.67 / 279.92, 0.0050166 / 0.005448, 96984.0 / 0.00897806, 5317.7 / 25773238844562
SELECT 1723.3031 / 72939, 42728::numeric / 7995440591455, 12812::numeric / 3923817750592, 6926.6204 / 98403159392222.25, 8399.16 / 55216721919696.25
SELECT 0.000735 / 29932041137133.25, 20244.0 / 0.001438, 7466.1 / 68577348605700, 1614.5075 / 59289285046733, 0.0031921 / 44300
SELECT 98958038252961.0 / 72822694276261.25, 14792::numeric / 9716.0, 0.000405 / 0.00756021, 0.00406542 / 0.00090, 4252.8 / 0.00938
SELECT 0.000847 / 34663, 59478.0 / 44454, 87494029235666.0 / 69064, 21162.0 / 0.000513, 0.005316 / 0.004462
SELECT 0.00348 / 0.00038, 5141.84 / 92647296016923.25, 55323095821470.25 / 9823.423, 8322.03 / 48915437170992, 142.547 / 7796166780717
SELECT 71205806764553.25 / 6926.2, 22171517262853.25 / 37044208487426.25, 0.0097265 / 344.442, 3565.5 / 0.00382245, 0.005033 / 5046.9
SELECT 34626::numeric / 18857, 51640::numeric / 39276, 844.75 / 45899403217289.25, 2841.49 / 93718, 98667240594587.0 / 89978
SELECT 850.8 / 6370.6, 63530551099843.0 / 82081, 4892.5 / 9869065963828, 97745::numeric / 33042423972028, 10799290866897.25 / 0.007672
SELECT 78605.0 / 3317.404, 124.7 / 14008874577061, 99764849570546.25 / 65633496265162, 3116.4 / 40755119852816.25, 66404::numeric / 37812966162279.25
SELECT 746.1 / 7474.117, 0.0013347 / 92188, 0.00232152 / 22385576209717, 63439694360585.25 / 0.00727456, 0.00377 / 0.0000274
SELECT 27551999089345::numeric / 0.00254, 47279::numeric / 38726770660248, 86767::numeric / 0.006353, 0.0043680 / 7731.0655, 99832.0 / 77992156433494
SELECT 95991.0 / 86541332477856, 0.004861 / 4721.374, 0.0029847 / 33589561733213.25, 94135291904904.25 / 21933, 751.6400 / 4529.413
SELECT 19647116179834.0 / 907.063, 0.0023989 / 8871.6285, 29556021248817.25 / 0.00339, 80823986499757.25 / 6866.85, 35524::numeric / 3845.2292
SELECT 0.00849 / 322.4124, 10290842408697.25 / 63187539635292, 29334.0 / 1520.5, 77614819092762::numeric / 16470, 84608.0 / 0.0096247
SELECT 13993585056597::numeric / 0.005249, 7904.1 / 70449, 0.0099638 / 0.006449, 33039248786397.0 / 53977, 0.000563 / 94922677637062.25
SELECT 33720::numeric / 6672.886, 91203.0 / 0.0071861, 67.538 / 26899, 28209315744342.25 / 2307.87, 0.0076071 / 81737
SELECT avg(x), sum(x), sum(x) / 7, round(avg(x), 4) FROM (VALUES (8963.8664), (93634297173841), (9218.3), (236.27), (99901261958368)) v(x)
SELECT avg(x), sum(x), sum(x) / 7, round(avg(x), 4) FROM (VALUES (46334918580755), (6524.0335), (40872)) v(x)
SELECT avg(x), sum(x), sum(x) / 7, round(avg(x), 4) FROM (VALUES (52621348366331.25), (15333860216951), (36675), (46068), (78972194994564), (43447222830871.25), (6457)) v(x)
SELECT avg(x), sum(x), sum(x) / 7, round(avg(x), 4) FROM (VALUES (52455376179137.25), (3232.7753), (82794), (5722734923422.25), (60825), (8127), (0.00196)) v(x)
SELECT avg(x), sum(x), sum(x) / 7, round(avg(x), 4) FROM (VALUES (0.0036361), (34364), (0.0092430), (94578), (3180), (1072.5154)) v(x)
SELECT avg(x), sum(x), sum(x) / 7, round(avg(x), 4) FROM (VALUES (0.00913630), (9280.07), (96796), (0.008229), (3277.677)) v(x)
SELECT avg(x), sum(x), sum(x) / 7, round(avg(x), 4) FROM (VALUES (0.00784), (3916.47), (4077.2), (76646164773025.25), (9801.6)) v(x)
SELECT avg(x), sum(x), sum(x) / 7, round(avg(x), 4) FROM (VALUES (0.006250), (55190)) v(x)
SELECT avg(x), sum(x), sum(x) / 7, round(avg(x), 4) FROM (VALUES (32960422882902), (87301584911005), (38526), (0.0028012), (0.0025480)) v(x)
SELECT avg(x), sum(x), sum(x) / 7, round(avg(x), 4) FROM (VALUES (26140333663466), (1533.08), (0.0006574)) v(x)
SELECT id FROM t WHERE a IS DISTINCT FROM 10 AND id < 4 ORDER BY id
SELECT id FROM t WHERE id = 1 AND a IS NOT DISTINCT FROM NULL OR id = 2 ORDER BY id
SELECT 1 IS DISTINCT FROM 2 AND false, NOT true IS DISTINCT FROM false OR true, false AND true IS NOT DISTINCT FROM false OR true, 1 IS DISTINCT FROM 1 + 1
SELECT a.id FROM t AS a WHERE EXISTS (SELECT 1 FROM (SELECT t_id AS a FROM u) z WHERE z.a = a.id) ORDER BY a.id
SELECT name.id FROM t AS name WHERE name.id IN (SELECT t_id FROM u WHERE u.t_id = name.id AND name.id > 0) ORDER BY 1
SELECT a.b FROM t WHERE id = 1
SELECT x.id, (SELECT count(*) FROM (SELECT id AS x FROM t) y WHERE y.x <= x.id) FROM t AS x ORDER BY 1
SELECT 99999.999::numeric * 99999.999::numeric, -12345678901234567890.5::numeric * 1.25::numeric, 0::numeric * 5::numeric, 1e18::numeric * -1e18::numeric
SELECT x * x, x * 0.5 * x FROM (VALUES (100.125::numeric), (-99999.999), (0.001)) v(x) ORDER BY 1
SELECT 1e20::numeric * 1e20::numeric
SELECT id, row_number() OVER (ORDER BY raw, id), rank() OVER (ORDER BY raw), count(*) OVER (ORDER BY raw) FROM t ORDER BY 1
SELECT x, sum(1) OVER (ORDER BY x::interval) FROM (VALUES ('1 day'), ('2 days'), ('1 day'), ('-1 month')) v(x) ORDER BY x::interval
SELECT x / 1 = x, x / 1, 1 / y, y / 7, x / y FROM (VALUES (1234567890123.123456789::numeric, 33.5::numeric), (-98765432109876543210.0000000000000000001, 12345678901234567)) v(x, y) ORDER BY 1, 2
SELECT avg(x), avg(DISTINCT x) FROM (VALUES (1234567890123.123456789::numeric), (1234567890124.5)) v(x)
SELECT 2::float8 ^ 2, 10::float8 ^ -400, power(0::float8, 0), (-8)::float8 ^ 3
SELECT 10 ^ 400
SELECT power(10, 400)
SELECT exp(1000::float8)
SELECT power(0::float8, -1)
SELECT sqrt(-1::float8)
SELECT ln(0::float8)
SELECT chr(0)
SELECT id FROM t ORDER BY id LIMIT -1
SELECT id FROM t ORDER BY id OFFSET -1
SELECT chr(65), chr(8364), chr(NULL), repeat('ab', -1), repeat(NULL, 2), repeat('é', 3), repeat('', 2000000000)
SELECT lpad('é', 3, 'xy'), rpad('abc', 2), lpad('abc', -1), rpad('a', 4, ''), lpad('a', 3, NULL), rpad('日', 4, 'ab'), lpad('x', 3)
SELECT repeat('a', 2000000000)
SELECT lpad('a', 2000000000)
SELECT chr(-1)
SELECT chr(2000000)
SELECT power(4, 0.5::float8), power('NaN'::float8, 0), exp(0::float8), sqrt(2.25::float8), ln(1::float8), log(100::float8), sqrt('Infinity'::float8), exp('-Infinity'::float8)
SELECT power(-8::float8, 0.5)
SELECT DISTINCT ON (a) a, id FROM t ORDER BY id
SELECT sqrt(f) FROM t
SELECT length('\x00ff'::bytea), length('é'::bytea), length(raw), octet_length(raw), length('é') FROM t ORDER BY id
SELECT to_hex(-7), to_hex(-7::bigint), to_hex(255), encode('\x00ff'::bytea, 'base64'), encode('abc'::bytea, 'hex'), decode('AP8=', 'base64')
SELECT a.*, b.t_id FROM (SELECT t.*, u.t_id FROM t JOIN u ON u.t_id = t.id) a JOIN u b ON b.t_id = a.t_id ORDER BY 1 LIMIT 1
SELECT ARRAY[1,2,3] AS a, ARRAY['x','y z',NULL], ARRAY[true,false], ARRAY[]::int[]
SELECT (ARRAY[1,2,3])[2], (ARRAY[1,2,3])[2:], (ARRAY[1,2,3])[:2], (ARRAY[1,2,3])[0], ('{a,b}'::text[])[1]
SELECT ARRAY[1,2] || 3, 0 || ARRAY[1,2], ARRAY[1] || ARRAY[2], ARRAY[1] || '{7,8}', NULL || ARRAY[1]
SELECT ARRAY[1,2] = '{1,2}', ARRAY[1,2] < ARRAY[1,2,0], ARRAY[NULL]::int[] > ARRAY[5], ARRAY[1,NULL] = ARRAY[1,NULL]
SELECT 1 = ANY ('{1,2}'), 1 <> ALL (ARRAY[1,NULL]), 3 = ANY (ARRAY[1,NULL]), 3 > ALL ('{}'::int[])
SELECT array_length(ARRAY[1,2], 1), cardinality('{}'::int[]), array_length('{}'::int[], 1), array_dims(ARRAY[5,6])
SELECT array_append(ARRAY[1], NULL), array_prepend(1, NULL::int[]), array_remove(ARRAY[1,NULL,1], 1), array_position(ARRAY['a','b'], 'b')
SELECT array_to_string(ARRAY[1,NULL,3], '-', '*'), string_to_array('a,b', ','), string_to_array('abc', NULL), string_to_array('', ',')
SELECT ARRAY[1,2] @> '{2}', '{2}' <@ ARRAY[1,2], ARRAY[1,NULL] && ARRAY[NULL::int], ARRAY[1] @> ARRAY[]::int[]
SELECT ARRAY['2020-01-01'::date, NULL]::text, ARRAY[1.5, 2.25]::int[], '{t,f}'::bool[], ARRAY['1','2']::bigint[]
SELECT '{1,2'::int[]
SELECT '{1,x}'::int[]
SELECT ARRAY[1, 'x']
SELECT ARRAY[]
SELECT 1 = ANY (2)
SELECT ARRAY[1] = ARRAY['a'::text]
SELECT ARRAY[1] || 'a'::text
SELECT '{"b":1,"a":[1,"x",null]}'::jsonb, '{"b":1,"a" : 2}'::json, 'null'::jsonb
SELECT '{"a":{"b":[10,20]}}'::jsonb -> 'a' -> 'b' ->> 1, '[1,2]'::json -> 0, '{"a":1}'::jsonb #>> '{a}', ('{"a":1}'::jsonb)['a']
SELECT '{"a":1,"b":2}'::jsonb @> '{"a":1}', '["x"]'::jsonb ? 'x', '{"a":1}'::jsonb ?| ARRAY['b','a'], '{"a":1}'::jsonb ?& ARRAY['b','a']
SELECT '{"a":1}'::jsonb = '{"a":1.0}', '[]'::jsonb < 'null', '1'::jsonb < '"a"', '{"a":1}'::jsonb || '{"b":2}', '{"a":1,"b":2}'::jsonb - 'a'
SELECT to_jsonb(1.5), to_jsonb('a"b'::text), to_json(true), to_jsonb('2020-01-01 10:00:00'::timestamp), to_json(ARRAY[1,2])
SELECT jsonb_build_object('a', 1, 'b', ARRAY[1,NULL]), json_build_object('k', NULL), jsonb_build_array(1, 'x', NULL), json_build_array()
SELECT jsonb_typeof('{}'), json_typeof('[1]'), jsonb_array_length('[1,2]'), jsonb_extract_path_text('{"a":{"b":7}}', 'a', 'b')
SELECT '12.6'::jsonb::int, 'true'::jsonb::boolean, '"x"'::jsonb::text, '{"a":1}'::json::jsonb, '1e2'::jsonb::numeric
SELECT '"x"'::jsonb::int
SELECT '{"a"}'::jsonb
SELECT '[1,]'::json
SELECT '"\u0000"'::jsonb
SELECT '{}'::json = '{}'::json
SELECT '{}'::json ORDER BY 1
SELECT jsonb_array_length('{}')
SELECT '{}'::jsonb + 1
SELECT 1::jsonb
SELECT 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid, '{A0EEBC999C0B4EF8BB6D6BB9BD380A11}'::uuid::text, 'x'::uuid
SELECT stddev_pop(x), var_pop(x), stddev(t_id), variance(id) FROM u
SELECT '1'::text + 1
SELECT '1'::text = 1
SELECT 1 IN ('1'::text)
SELECT coalesce('1'::text, 2)
SELECT 1 UNION SELECT '1'::text
SELECT 1 UNION SELECT '2' UNION SELECT NULL UNION SELECT 2.5 ORDER BY 1
SELECT 'a%b'::text LIKE 'a!%b'::text ESCAPE '!'
SELECT CASE '-0'::float8 WHEN 0 THEN 'zero' ELSE 'other' END
SELECT nullif('-0'::float8, 0), nullif('1 day'::interval, '24 hours')
SELECT count(DISTINCT x) FROM (VALUES ('-0'::float8), (0)) v(x)
SELECT '04:05:06.789'::time, '04:05'::time, '040506'::time, '04:05 PM'::time, '04:05:06-08'::time, 'allballs'::time, '24:00'::time
SELECT '04:05:06-08:30'::timetz, '04:05:06'::timetz, '04:05:06 PM+02'::timetz
SELECT '25:00'::time
SELECT '12:60'::time
SELECT 'noon'::time
SELECT 'x'::timetz
SELECT time '10:00' - time '09:30', time '10:00' + interval '15 hours', time '00:10' - interval '1 hour', interval '1 day 2 hours' + time '23:00'
SELECT date '2024-02-29' + time '13:14:15', time '13:14:15' + date '2024-02-29', date '2024-02-29' + timetz '13:14:15+02'
SELECT timetz '10:00+02' + interval '3 hours', timetz '10:00+02' < timetz '09:00+00', timetz '10:00+02' = timetz '08:00+00', timetz '10:00+02' < timetz '08:00+00'
SELECT timestamp '2024-02-29 13:14:15.5'::time, timestamptz '2024-02-29 13:14:15.5+01'::time, timestamptz '2024-02-29 13:14:15.5+01'::timetz
SELECT time '10:00'::interval, interval '1 day 26 hours'::time, interval '-1 hour'::time, time '10:00'::timetz, timetz '10:00+05'::time
SELECT timestamp '2024-02-29 13:14:15'::timetz
SELECT date '2024-02-29'::time
SELECT 5::time
SELECT extract(hour FROM time '10:20:30.5'), extract(minute FROM time '10:20:30.5'), extract(second FROM time '10:20:30.5'), extract(epoch FROM time '10:20:30.5'), date_part('milliseconds', time '10:20:30.5')
SELECT extract(timezone FROM timetz '10:20+05:30'), extract(timezone_hour FROM timetz '10:20-05:30'), extract(timezone_minute FROM timetz '10:20-05:30'), extract(epoch FROM timetz '10:20+01')
SELECT extract(day FROM time '10:20')
SELECT extract(year FROM timetz '10:20+00')
SELECT date_trunc('hour', time '10:20:30')
SELECT make_time(8, 15, 23.5)
SELECT make_time(25, 15, 23.5)
SELECT time '10:00' > '09:00', '09:00' < time '10:00', time '10:00' BETWEEN '09:00' AND '11:00', time '10:00' IN ('10:00', '11:00')
SELECT time '10:00' + time '10:00'
SELECT time '10:00' = 5
SELECT time '10:00' = timetz '10:00+00', time '10:00' = interval '10 hours'
SELECT time '10:00' * 2, time '10:00' / 2
SELECT max(t), min(t) FROM (VALUES (time '10:00'), (time '11:00')) AS x(t)
SELECT max(t), min(t) FROM (VALUES (timetz '10:00+00'), (timetz '11:00+02')) AS x(t)
SELECT '10:20:30.123456'::time(3), '10:20:30.9999'::time(0), '10:20:30.55+02'::timetz(1), timestamp '2024-01-01 10:20:30.123456'::timestamp(3)
SELECT '1999-12-31 23:59:59.5'::timestamp(0), '2000-01-01 00:00:00.5'::timestamp(0), '1999-12-31 23:59:58.5'::timestamp(0), '2024-01-01 00:00:00.25'::timestamptz(1)
SELECT CAST('2024-01-01 10:20:30.123456' AS timestamp(2)), CAST(timestamptz '2024-01-01 10:20:30.123456+00' AS timestamptz(9))
SELECT ARRAY['10:00'::time, '11:00'], '{10:00,11:00}'::time[]
SELECT coalesce(NULL::time, '10:00'), greatest(time '10:00', '11:00'), CASE WHEN true THEN time '10:00' ELSE '11:00' END
SELECT t, count(*) FROM (VALUES (time '10:00'), ('11:00'), ('10:00')) AS x(t) GROUP BY t ORDER BY t DESC
SELECT '10:00'::text::time, time '10:00'::text, timetz '10:00+01'::text AS z
SELECT sum(t), avg(t) FROM (VALUES (time '10:00'), (time '11:00')) AS x(t)
SELECT to_char(time '10:20:30', 'HH24:MI')
SELECT timestamp '2024-02-29 13:14:15' + time '01:00', timestamp '2024-02-29 13:14:15' - time '01:00', date '2024-02-29' - time '01:00'
VALUES (date '2024-01-01'), ('2024-01-02')
VALUES (1), (2.5), ('3')
VALUES (uuid '00000000-0000-0000-0000-000000000001'), (NULL), ('00000000-0000-0000-0000-000000000002')
VALUES (1), (NULL), ('x')
VALUES ('{"a": 1}'::jsonb, 'x'), ('2', 'y') ORDER BY column1
SELECT a + 1, b FROM (VALUES (1, 'x'), ('2', 'y')) AS v(a, b)
VALUES (1, 2), (3)
SELECT sum(i), avg(i) FROM (VALUES (interval '1 day 2 hours'), (interval '2 months 3 hours'), (NULL)) AS x(i)
SELECT sum(i), avg(i), count(i) FROM (VALUES (interval '1 day')) AS x(i) WHERE i IS NULL
SELECT g, sum(i) FILTER (WHERE g > 1), avg(i) FROM (VALUES (1, interval '1 day'), (2, interval '36 hours'), (2, '1 month')) AS x(g, i) GROUP BY g ORDER BY g
SELECT g, sum(i) OVER (ORDER BY g), avg(i) OVER (ORDER BY g ROWS 1 PRECEDING) FROM (VALUES (1, interval '1 day'), (2, interval '36 hours'), (3, '1 month')) AS x(g, i) ORDER BY g
SELECT avg(i) FROM (VALUES (interval '1 second'), (interval '2 seconds'), (interval '4 seconds')) AS x(i)
SELECT g, string_agg(s, ',' ORDER BY s), string_agg(s, '-' ORDER BY s DESC), string_agg(s, '' ORDER BY n), string_agg(DISTINCT s, ';' ORDER BY s DESC) FROM (VALUES (1, 'a', 3), (1, 'b', 2), (2, 'c', 1), (1, 'a', 0)) AS x(g, s, n) GROUP BY g ORDER BY g
SELECT string_agg(s, ',' ORDER BY n, s), array_agg(s ORDER BY s DESC), string_agg(s, ',' ORDER BY s DESC) FILTER (WHERE n > 0) FROM (VALUES (1, 'a', 3), (1, 'b', 2), (2, 'c', 1), (1, 'a', 0)) AS x(g, s, n)
