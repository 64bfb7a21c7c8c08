-- CHECK and UNIQUE, by INSERT, UPDATE, ON CONFLICT and in blocks.
\set VERBOSITY verbose
\pset format unaligned
CREATE TABLE c (id int primary key, a int CHECK (a > 0), b int CONSTRAINT bpos CHECK (b > 0), u text UNIQUE, x int, y int, UNIQUE (x, y), CHECK (a < b));
INSERT INTO c VALUES (1, 1, 2, 'u', 1, 1);
INSERT INTO c VALUES (2, 0, 2, 'v', 1, 2);
INSERT INTO c VALUES (2, 3, 2, 'v', 1, 2);
INSERT INTO c VALUES (2, 1, 2, 'u', 1, 2);
INSERT INTO c VALUES (2, 1, 2, 'v', 1, 1);
INSERT INTO c VALUES (1, 1, 2, 'v', 1, 2);
INSERT INTO c VALUES (2, null, null, null, null, 1), (3, null, null, null, null, 1);
INSERT INTO c VALUES (4, 1, 2, 'w', 2, 2), (5, 1, 2, 'w', 3, 3);
UPDATE c SET a = 5 WHERE id = 1;
UPDATE c SET u = 'z';
UPDATE c SET u = 'u' WHERE id = 1;
UPDATE c SET x = 9, y = 9 WHERE id IN (2,3);
SELECT * FROM c ORDER BY id;
DELETE FROM c WHERE id = 1;
INSERT INTO c VALUES (1, 1, 2, 'u', 1, 1);
BEGIN;
INSERT INTO c VALUES (10, 1, 2, 'blk', 10, 10);
INSERT INTO c VALUES (11, 1, 2, 'blk', 11, 11);
ROLLBACK;
INSERT INTO c VALUES (12, 1, 2, 'blk', 10, 10);
INSERT INTO c VALUES (13, 1, 2, 'blk', 10, 11) ON CONFLICT (u) DO UPDATE SET a = 1, b = 100;
INSERT INTO c VALUES (13, 1, 2, 'blk', 10, 11) ON CONFLICT DO NOTHING;
SELECT * FROM c ORDER BY id;
