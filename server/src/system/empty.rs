//! Relations of `pg_catalog` that never have rows here: clients ask for them all the same.

/// Relations that never have rows here.
pub const EMPTY: &[(&str, &str)] = &[
    (
        "pg_policy",
        "oid:o polname:t polrelid:o polcmd:t polpermissive:b polroles:t polqual:t polwithcheck:t",
    ),
    (
        "pg_statistic_ext",
        "oid:o stxrelid:o stxname:t stxnamespace:o stxowner:o stxstattarget:i stxkeys:t stxkind:t stxexprs:t",
    ),
    (
        "pg_publication",
        "oid:o pubname:t pubowner:o puballtables:b pubinsert:b pubupdate:b pubdelete:b pubtruncate:b pubviaroot:b",
    ),
    ("pg_publication_namespace", "oid:o pnpubid:o pnnspid:o"),
    ("pg_publication_rel", "oid:o prpubid:o prrelid:o prqual:t prattrs:t"),
    (
        "pg_publication_tables",
        "pubname:t schemaname:t tablename:t attnames:t rowfilter:t",
    ),
    ("pg_inherits", "inhrelid:o inhparent:o inhseqno:i inhdetachpending:b"),
    (
        "pg_partitioned_table",
        "partrelid:o partstrat:t partnatts:s partdefid:o partattrs:t partclass:t partcollation:t partexprs:t",
    ),
    (
        "pg_trigger",
        "oid:o tgrelid:o tgparentid:o tgname:t tgfoid:o tgtype:s tgenabled:t tgisinternal:b tgconstrrelid:o tgconstrindid:o tgconstraint:o tgdeferrable:b tginitdeferred:b tgnargs:s tgattr:t tgargs:t tgqual:t tgoldtable:t tgnewtable:t",
    ),
    (
        "pg_rewrite",
        "oid:o rulename:t ev_class:o ev_type:t ev_enabled:t is_instead:b ev_qual:t ev_action:t",
    ),
    ("pg_auth_members", "roleid:o member:o grantor:o admin_option:b"),
    ("pg_shdescription", "objoid:o classoid:o description:t"),
    (
        "pg_shdepend",
        "dbid:o classid:o objid:o objsubid:i refclassid:o refobjid:o deptype:t",
    ),
    ("pg_enum", "oid:o enumtypid:o enumsortorder:f enumlabel:t"),
    (
        "pg_event_trigger",
        "oid:o evtname:t evtevent:t evtowner:o evtfoid:o evtenabled:t evttags:t",
    ),
    ("pg_subscription", "oid:o subdbid:o subname:t subowner:o subenabled:b"),
    ("pg_user_mapping", "oid:o umuser:o umserver:o umoptions:t"),
    (
        "pg_default_acl",
        "oid:o defaclrole:o defaclnamespace:o defaclobjtype:t defaclacl:t",
    ),
    ("pg_seclabel", "objoid:o classoid:o objsubid:i provider:t label:t"),
    ("pg_shseclabel", "objoid:o classoid:o provider:t label:t"),
    (
        "pg_seclabels",
        "objoid:o classoid:o objsubid:i objtype:t objnamespace:o objname:t provider:t label:t",
    ),
    ("pg_locks", "locktype:t database:o relation:o pid:i mode:t granted:b"),
    ("pg_prepared_xacts", "transaction:t gid:t prepared:t owner:t database:t"),
    (
        "pg_replication_slots",
        "slot_name:t plugin:t slot_type:t database:t active:b",
    ),
    ("pg_stat_gssapi", "pid:i gss_authenticated:b principal:t encrypted:b"),
    ("pg_largeobject_metadata", "oid:o lomowner:o lomacl:t"),
    (
        "pg_foreign_data_wrapper",
        "oid:o fdwname:t fdwowner:o fdwhandler:o fdwvalidator:o fdwacl:t fdwoptions:t",
    ),
    ("pg_transform", "oid:o trftype:o trflang:o trffromsql:o trftosql:o"),
    ("pg_init_privs", "objoid:o classoid:o objsubid:i privtype:t initprivs:t"),
    (
        "pg_statistic",
        "starelid:o staattnum:s stainherit:b stanullfrac:f stawidth:i stadistinct:f",
    ),
    (
        "pg_proc",
        "oid:o proname:t pronamespace:o proowner:o prolang:o procost:f prorows:f provariadic:o prosupport:t prokind:t prosecdef:b \
         proleakproof:b proisstrict:b proretset:b provolatile:t proparallel:t pronargs:s pronargdefaults:s prorettype:o proargtypes:t \
         proallargtypes:t proargmodes:t proargnames:t proargdefaults:t protrftypes:t prosrc:t probin:t prosqlbody:t proconfig:t proacl:t",
    ),
    ("pg_aggregate", "aggfnoid:t aggkind:t aggnumdirectargs:s"),
    (
        "pg_cast",
        "oid:o castsource:o casttarget:o castfunc:o castcontext:t castmethod:t",
    ),
    (
        "pg_conversion",
        "oid:o conname:t connamespace:o conowner:o conforencoding:i contoencoding:i conproc:t condefault:b",
    ),
    (
        "pg_opclass",
        "oid:o opcmethod:o opcname:t opcnamespace:o opcowner:o opcfamily:o opcintype:o opcdefault:b opckeytype:o",
    ),
    (
        "pg_operator",
        "oid:o oprname:t oprnamespace:o oprowner:o oprkind:t oprleft:o oprright:o oprresult:o oprcode:t",
    ),
    ("pg_opfamily", "oid:o opfmethod:o opfname:t opfnamespace:o opfowner:o"),
    (
        "pg_amop",
        "oid:o amopfamily:o amoplefttype:o amoprighttype:o amopstrategy:s amopopr:o amopmethod:o",
    ),
    (
        "pg_amproc",
        "oid:o amprocfamily:o amproclefttype:o amprocrighttype:o amprocnum:s amproc:t",
    ),
    (
        "pg_range",
        "rngtypid:o rngsubtype:o rngmultitypid:o rngcollation:o rngsubopc:o rngcanonical:t rngsubdiff:t",
    ),
    (
        "pg_extension",
        "oid:o extname:t extowner:o extnamespace:o extrelocatable:b extversion:t extconfig:t extcondition:t",
    ),
    ("pg_db_role_setting", "setdatabase:o setrole:o setconfig:t"),
    ("pg_ts_config", "oid:o cfgname:t cfgnamespace:o cfgowner:o cfgparser:o"),
    (
        "pg_ts_dict",
        "oid:o dictname:t dictnamespace:o dictowner:o dicttemplate:o dictinitoption:t",
    ),
    ("pg_ts_parser", "oid:o prsname:t prsnamespace:o"),
    ("pg_ts_template", "oid:o tmplname:t tmplnamespace:o"),
    (
        "pg_stats",
        "schemaname:t tablename:t attname:t inherited:b null_frac:f avg_width:i n_distinct:f",
    ),
];

/// Whether a relation of `pg_catalog` never has rows.
pub fn is_empty_by_nature(name: &str) -> bool {
    EMPTY.iter().any(|(n, _)| *n == name)
}
