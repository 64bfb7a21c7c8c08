create table t (id int primary key, v int)
insert into t values (1, 1), (2, 2), (3, 3)
show transaction_isolation
begin
show transaction_isolation
insert into t values (4, 4)
savepoint a
insert into t values (5, 5)
savepoint b
update t set v = 50 where id = 5
rollback to a
select * from t order by id
insert into t values (5, 55)
savepoint a
delete from t where id = 1
select 1/0
select 1
rollback to savepoint a
select * from t order by id
release a
rollback to a
release b
rollback to nope
select 1
rollback
select * from t order by id
savepoint x
release x
rollback to x
begin
savepoint s
release s
release s
commit
begin isolation level repeatable read
show transaction_isolation
select count(*) from t
set transaction isolation level read committed
rollback
begin
set transaction isolation level repeatable read
show transaction_isolation
commit
begin read only
insert into t values (9, 9)
rollback
begin read only
select * from t for update
rollback
set default_transaction_isolation = 'repeatable read'
begin
show transaction_isolation
commit
reset default_transaction_isolation
begin
set local statement_timeout = '5s'
savepoint s
set statement_timeout = '7s'
show statement_timeout
rollback to s
show statement_timeout
rollback
show statement_timeout
-- cursors
declare c cursor for select 1
begin
declare c cursor for select id from t order by id
declare c cursor for select 1
rollback
begin
declare c cursor for select id, v from t order by id
fetch c
fetch 0 from c
fetch 2 from c
fetch c
fetch all in c
move forward all in c
fetch nope
rollback
begin
declare s scroll cursor for select id from t order by id
fetch last from s
fetch prior from s
fetch absolute 2 from s
fetch absolute -1 from s
fetch relative -1 from s
fetch relative 0 from s
fetch backward all from s
fetch first in s
fetch forward 5 in s
fetch backward 2 in s
move absolute 0 in s
fetch next in s
move 10 in s
fetch prior in s
close s
close s
rollback
begin
declare h cursor with hold for select id from t order by id
declare n cursor for select id from t order by id
fetch h
commit
fetch n
fetch all from h
close h
declare h cursor with hold for select id from t where id > 1 order by id
fetch h
close all
fetch h
begin
savepoint s
declare c cursor for select 1
rollback to s
fetch c
rollback
-- locks of one session
begin
select id from t where id < 3 order by id for update
select id from t where id < 3 order by id for share of t nowait
select id from t as q order by id desc limit 2 offset 1 for no key update of q skip locked
select t.id, u.v from t join t u on u.id = t.id + 1 order by 1 for key share of t for update of u
lock table t in share mode
lock t nowait
commit
lock table t
select distinct id from t for share
select count(*) from t for update
select v from t group by v for update
select id from t union select 1 for update
select t.id from t left join t u on u.id = t.id for update
select t.id from t left join t u on u.id = t.id + 5 order by 1 for update of t
select * from t for update of x
select * from (select id from t) q for update of t
values (1) for update
select pg_try_advisory_lock(1), pg_advisory_unlock(1)
select pg_advisory_lock(2, 3)
select pg_advisory_unlock(2, 3), pg_advisory_unlock(2, 3)
select pg_advisory_lock(5), pg_advisory_lock(5)
select pg_advisory_unlock(5)
select pg_advisory_unlock_all()
select pg_advisory_unlock(5)
begin
select pg_advisory_xact_lock(7), pg_try_advisory_xact_lock_shared(7)
select pg_advisory_unlock(7)
commit
-- several statements in one string are one transaction
insert into t values (20, 1); insert into t values (20, 2)
select count(*) from t where id = 20
insert into t values (21, 1); select sum(v) from t; update t set v = v + 1 where id = 21 returning v
begin; insert into t values (22, 1); commit; insert into t values (23, 1); select 1/0
select id from t where id > 20 order by id
