create table t (id int primary key, a int, b text default 'dflt')
create table k (x int, y text)
insert into t values (1,10,'one'),(2,20,'two'),(3,30,'three') returning *
insert into t (id) values (4) returning id, b, id+1, id*2 as dbl, upper(b), 'x'
insert into t as z (id,a) values (5,50) returning z.*, z.id
insert into t select 6, 60 returning id, (select max(id) from t)
insert into t values (7, 70, null) returning b is null, coalesce(b, 'none')
insert into t default values returning *
insert into t values (7, 1, 'x') returning *
update t set a = a + 1 where id < 3 returning id, a, t.b
update t as q set a = a + 1 where id < 3 returning q.*
update t set b = default where id = 7 returning *
update t set a = id where false returning *
delete from t where id >= 5 returning *
delete from t where id = 55 returning *
insert into t values (6,60,'s') returning count(*)
insert into t values (6,60,'s') returning nope
insert into t values (6,60,'s') returning q.*
insert into t values (6,60,'s') returning 1/0
select count(*) from t
-- ON CONFLICT
insert into t values (1,11,'dup') on conflict do nothing
insert into t values (1,11,'dup') on conflict (id) do nothing returning *
insert into t values (1,11,'dup'), (7,70,'seven') on conflict (id) do update set a = excluded.a, b = t.b || excluded.b returning *
insert into t values (7,71,'x'), (8,80,'eight'), (1,12,'y') on conflict (id) do update set a = excluded.a returning *
insert into t values (1,11,'dup') on conflict (id) do update set a = t.a + excluded.a where t.a > 100 returning *
insert into t values (1,11,'dup') on conflict (id) do update set a = t.a + 1 where t.a < 100 returning *
insert into t as o values (1,11,'dup') on conflict (id) do update set a = o.a + 1 returning o.a
insert into t values (9,1,'x'), (9,2,'y') on conflict (id) do update set a = excluded.a
insert into t values (1,1,'x'), (1,2,'y') on conflict (id) do update set a = excluded.a
insert into t values (1,1,'x'), (1,2,'y') on conflict (id) do update set a = excluded.a where t.a = -1
insert into t values (9,1,'x'), (9,2,'y') on conflict (id) do nothing returning *
insert into t values (1,1,'x') on conflict (a) do nothing
insert into t values (1,1,'x') on conflict (nope) do nothing
insert into t values (1,1,'x') on conflict on constraint t_pkey do update set b = default, a = (select max(a) from t) returning *
insert into t values (1,1,'x') on conflict on constraint nope do nothing
insert into t values (1,1,'x') on conflict do update set a = 1
insert into t values (1,1,'x') on conflict (id) do update set a = a + 1
insert into t values (1,1,'x') on conflict (id) do update set id = 2
insert into t values (1,1,'x') on conflict (id) do update set id = 100 returning *
insert into t values (100,1,'x') on conflict (id) do update set (a, b) = (excluded.a + 1, excluded.b) returning *
insert into t values (null,1,'x') on conflict (id) do nothing
insert into t select id, 0, 'again' from t order by id on conflict (id) do update set b = excluded.b || t.id
select * from t order by id
-- several tables
insert into k values (1,'a'),(1,'a'),(2,'b'),(null,'n') returning *
insert into t values (1, 5, 'one') on conflict (id) do nothing
update t set a = k.x, b = k.y from k where t.id = k.x and k.x = 2 returning t.*, k.*
update t set b = 'z' || y from k where t.id = x and y = 'b' returning id, b, y
update k set y = t.b from t where t.id = k.x and t.id = 2 returning *
update k set y = y || u.v from (values (1,'p'),(1,'p')) u(w,v) where k.x = u.w returning k.*, u.v
update t set a = s.n from (select x, count(*) as n from k group by x) s where s.x = t.id
update t set a = u.id from t u where u.id = t.id + 1 and t.id = 1 returning t.id, t.a
update t set a = k.x from k left join t t2 on t2.id = k.x where t.id = k.x and k.x = 2
delete from k using t where t.id = k.x and t.id = 2 returning k.*, t.id
delete from k using t t1, t t2 where t1.id = k.x and t2.id = t1.id
delete from t using t u where u.id = t.id and u.id > 50 returning t.id
select * from k order by 1, 2
select id, b from t order by id
update t set (a,b) = (select 5, 'five') where id = 3 returning *
update t set (a,b) = (1, default) where id = 3 returning *
update t set (a,b) = (select 5) where id = 3
update t set a = 1, a = 2
update t set t.a = 1
update nope set a = 1
-- differs: PostgreSQL tests each row as it comes, Levee the rows after the statement
update t set id = id + 1
delete from t
select count(*) from t
-- MERGE
insert into t select g, g*10, 'g'||g from generate_series(1,5) g
merge into t using (values (1,'m1'),(9,'m9'),(2,'m2'),(3,'m3')) s(i,v) on t.id = s.i when matched and s.i = 2 then delete when matched and s.i = 3 then do nothing when matched then update set b = s.v, a = t.a + 1 when not matched then insert (id, b) values (s.i, s.v)
select * from t order by id
merge into t as tt using (select 4 as i union all select 4) s on tt.id = s.i when matched then delete
merge into t using t s on t.id = s.id + 100 when not matched and s.id < 4 then insert values (s.id + 100, 1, default)
merge into t using k on t.id = k.x when not matched then insert default values
merge into t using (select 1) s(i) on t.id = s.i when matched then update set a = 1 when matched then delete
merge into t using (select 1) s(i) on t.id = s.i when not matched then insert (id) values (1, 2)
merge into t using (select 1) s(i) on t.id = s.i when matched then update set id = 9
select * from t order by id
delete from k
insert into k values (1,'a'),(1,'a'),(2,'b')
merge into k using (values (1),(3)) s(i) on k.x = s.i when matched then update set y = 'mm' when not matched then insert values (s.i, 'new')
select * from k order by 1, 2
-- TRUNCATE, tables from queries
truncate t
truncate table k, t restart identity
truncate nope
select count(*) from t
create table c as select 1 as one, 'x' as two, 1.5 as three, now() is null as four
select * from c
create table c as select 1
create table if not exists c as select 1
create table d (p, q) as values (1, 'a'), (2, 'b')
select q, p from d order by p
create table e as select * from d with no data
select count(*) from e
create table f (a, b, c) as select 1, 2
create table g as select 1, 2
select p + 1 as r into h from d
select sum(r) from h
insert into e select * from d returning p
drop table c, d, e, h
-- WITH that writes
create table a (id int primary key, v text)
create table b (id int primary key, v text)
insert into a values (1, 'x'), (2, 'y'), (3, 'z')
with gone as (delete from a where id < 3 returning *) insert into b select * from gone returning id
with s as (select id + 10 as id, v from b) insert into a select * from s returning *
with s as (select 11 as id) update a set v = 'w' from s where a.id = s.id returning a.*
with s as (select 11 as id) delete from a using s where a.id = s.id returning a.id
with one as (insert into a values (4, 'four') returning id), two as (update b set v = v || '!' returning id, v) select one.id, two.v from one, two order by 2
with one as (insert into a values (5, 'five')) select 1 as done
with one as (insert into a values (6, 'six') returning id) select id / 0 from one
with one as (insert into a values (4, 'again') returning id) select * from one
with w as (update a set v = 'seen' where id = 4 returning v) select (select v from a where id = 4) as before, v from w
select * from a order by id
select * from b order by id
update a set v = 'job' where id = (select id from a where v is not null order by id limit 1 for update skip locked) returning *
delete from a where id in (select id from a order by id limit 2 for update) returning id
with job as (select id from b order by id limit 1 for update) update b set v = 'taken' from job where b.id = job.id returning b.*
select id from (select id from b order by id for share) s order by id
create table ch (c char(4) primary key, d char)
insert into ch values ('ab  ', 'x')
insert into ch values ('abcde', 'x')
select length(c), c = 'ab' from ch
select count(*) from ch where c = 'ab'
