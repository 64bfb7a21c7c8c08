-- Generated columns.
\set VERBOSITY verbose
\pset format unaligned
CREATE TABLE g (a int, b int GENERATED ALWAYS AS (a * 2) STORED, c text GENERATED ALWAYS AS ('x' || a) STORED);
INSERT INTO g VALUES (1), (2);
INSERT INTO g (a, b) VALUES (1, 5);
INSERT INTO g (a, b) VALUES (4, DEFAULT);
UPDATE g SET a = a + 1;
UPDATE g SET b = 4;
SELECT * FROM g ORDER BY a;
CREATE TABLE bad (a int, b int GENERATED ALWAYS AS (b + 1) STORED);
CREATE TABLE bad (a int, b float GENERATED ALWAYS AS (random()) STORED);
CREATE TABLE bad (a int, b int DEFAULT 3 GENERATED ALWAYS AS (a) STORED);
CREATE TABLE bad (a int CHECK (a));
CREATE TABLE bad (a int CHECK (a = (select 1)));
CREATE TABLE bad (a int CHECK (sum(a) > 1));
COPY g (a) FROM STDIN;
7
8
\.
SELECT * FROM g ORDER BY a;
