//! The grammar of [`Definition`]s.

use sqlparser::ast::{Ident, ObjectName};
use sqlparser::parser::Parser;
use sqlparser::tokenizer::Token;

use super::{AlterAction, CommentTarget, Definition};
use crate::sql::ast::DropKind;
use crate::sql::ext::fold;
use crate::sql::parse::ParseContext;
use crate::sql::sequences::SequenceOptions;
use crate::{PlanError, Result};

/// Reads the statement if it is one of these; otherwise leaves the cursor at its start.
pub(in crate::sql) fn parse(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Option<Definition>> {
    let g = &mut Grammar { p, cx };
    Ok(Some(if g.eat(&["create", "schema"]) {
        g.create_schema()?
    } else if g.eat(&["drop", "schema"]) {
        let if_exists = g.eat(&["if", "exists"]);
        let names = g.idents()?;
        let cascade = g.cascade();
        Definition::DropSchema {
            names,
            if_exists,
            cascade,
        }
    } else if g.eat(&["alter", "schema"]) {
        let name = g.ident()?;
        let to = if g.eat(&["rename", "to"]) {
            Some(g.ident()?)
        } else {
            g.expect(&["owner", "to"])?;
            g.ident()?;
            None
        };
        Definition::RenameSchema { name, to }
    } else if g.eat(&["create", "sequence"]) {
        g.create_sequence(false)?
    } else if g.eat(&["create", "temp", "sequence"]) || g.eat(&["create", "temporary", "sequence"]) {
        g.create_sequence(true)?
    } else if g.eat(&["grant"]) {
        g.skip_rest();
        Definition::Privileges("GRANT")
    } else if g.eat(&["revoke"]) {
        g.skip_rest();
        Definition::Privileges("REVOKE")
    } else if g.eat(&["alter", "default", "privileges"]) {
        g.skip_rest();
        Definition::Privileges("ALTER DEFAULT PRIVILEGES")
    } else if g.eat(&["reassign", "owned"]) {
        g.skip_rest();
        Definition::Privileges("REASSIGN OWNED")
    } else if g.eat(&["create", "extension"]) {
        let if_not_exists = g.eat(&["if", "not", "exists"]);
        let name = fold(&g.ident()?);
        g.skip_rest();
        Definition::CreateExtension { name, if_not_exists }
    } else if g.eat(&["reindex"]) {
        g.skip_rest();
        Definition::Maintain {
            tag: "REINDEX",
            tables: Vec::new(),
        }
    } else if g.eat(&["cluster"]) {
        g.eat(&["verbose"]);
        let named = g.p.peek_token_ref().token != Token::EOF;
        let tables = if named { vec![g.name()?] } else { Vec::new() };
        g.skip_rest();
        Definition::Maintain { tag: "CLUSTER", tables }
    } else if g.next_is("alter") {
        return g.alter();
    } else if g.eat(&["comment", "on"]) {
        g.comment()?
    } else if g.eat(&["analyze"]) || g.eat(&["analyse"]) {
        g.maintain("ANALYZE")?
    } else if g.eat(&["vacuum"]) {
        g.maintain("VACUUM")?
    } else {
        return Ok(None);
    }))
}

/// A cursor with the few moves that these statements need.
pub(in crate::sql) struct Grammar<'a, 'p, 'c> {
    pub p: &'a mut Parser<'p>,
    pub cx: &'a ParseContext<'c>,
}

impl Grammar<'_, '_, '_> {
    fn word(&self, n: usize) -> Option<String> {
        match &self.p.peek_nth_token_ref(n).token {
            Token::Word(w) if w.quote_style.is_none() => Some(w.value.to_lowercase()),
            _ => None,
        }
    }

    /// Is the next word this one?
    pub fn next_is(&self, word: &str) -> bool {
        self.word(0).as_deref() == Some(word)
    }

    /// Takes these words if they come next.
    pub fn eat(&mut self, words: &[&str]) -> bool {
        let found = words
            .iter()
            .enumerate()
            .all(|(n, w)| self.word(n).as_deref() == Some(*w));
        if found {
            for _ in words {
                self.p.next_token();
            }
        }
        found
    }

    /// These words must come next.
    pub fn expect(&mut self, words: &[&str]) -> Result<()> {
        if self.eat(words) { Ok(()) } else { Err(self.error()) }
    }

    /// A syntax error at the next token.
    pub fn error(&self) -> PlanError {
        self.cx.error_here(self.p)
    }

    /// An identifier.
    pub fn ident(&mut self) -> Result<Ident> {
        self.p.parse_identifier().map_err(|e| self.cx.error(e))
    }

    fn idents(&mut self) -> Result<Vec<Ident>> {
        self.p
            .parse_comma_separated(Parser::parse_identifier)
            .map_err(|e| self.cx.error(e))
    }

    /// A name, perhaps with a schema.
    pub fn name(&mut self) -> Result<ObjectName> {
        self.p.parse_object_name(false).map_err(|e| self.cx.error(e))
    }

    /// CASCADE; RESTRICT is the default.
    pub fn cascade(&mut self) -> bool {
        let cascade = self.eat(&["cascade"]);
        if !cascade {
            self.eat(&["restrict"]);
        }
        cascade
    }

    /// The rest of the statement is of no matter.
    pub fn skip_rest(&mut self) {
        while self.p.peek_token_ref().token != Token::EOF {
            self.p.next_token();
        }
    }

    /// What remains of one action, up to a comma outside parentheses.
    fn skip_action(&mut self) {
        let mut depth = 0_usize;
        loop {
            match self.p.peek_token_ref().token {
                Token::EOF => return,
                Token::Comma if depth == 0 => return,
                Token::LParen => depth += 1,
                Token::RParen => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.p.next_token();
        }
    }

    fn create_schema(&mut self) -> Result<Definition> {
        let if_not_exists = self.eat(&["if", "not", "exists"]);
        let name = if self.eat(&["authorization"]) {
            self.ident()?
        } else {
            let name = self.ident()?;
            if self.eat(&["authorization"]) {
                self.ident()?;
            }
            name
        };
        if self.p.peek_token_ref().token != Token::EOF {
            return Err(PlanError::unsupported("CREATE SCHEMA with elements is not supported")
                .hint("Create the schema, then its objects."));
        }
        Ok(Definition::CreateSchema { name, if_not_exists })
    }

    fn alter(&mut self) -> Result<Option<Definition>> {
        if self.eat(&["alter", "sequence"]) {
            return self.alter_sequence().map(Some);
        }
        let kinds: [(&[&str], Option<DropKind>); 7] = [
            (&["alter", "table"], None),
            (&["alter", "foreign", "table"], None),
            (&["alter", "materialized", "view"], Some(DropKind::MaterializedView)),
            (&["alter", "view"], Some(DropKind::View)),
            (&["alter", "source"], Some(DropKind::Source)),
            (&["alter", "sink"], Some(DropKind::Sink)),
            (&["alter", "index"], Some(DropKind::Index)),
        ];
        let Some((_, kind)) = kinds.iter().find(|(words, _)| self.eat(words)) else {
            return Ok(None);
        };
        let kind = *kind;
        let if_exists = self.eat(&["if", "exists"]);
        self.eat(&["only"]);
        let name = self.name()?;
        let _all_children = self.p.consume_token(&Token::Mul);
        let mut actions = vec![self.action()?];
        while self.p.consume_token(&Token::Comma) {
            actions.push(self.action()?);
        }
        Ok(Some(Definition::AlterObject {
            kind,
            if_exists,
            name,
            actions,
        }))
    }

    fn create_sequence(&mut self, temporary: bool) -> Result<Definition> {
        let if_not_exists = self.eat(&["if", "not", "exists"]);
        let name = self.name()?;
        let options = self.sequence_options()?;
        Ok(Definition::CreateSequence {
            temporary,
            if_not_exists,
            name,
            options,
        })
    }

    fn alter_sequence(&mut self) -> Result<Definition> {
        let if_exists = self.eat(&["if", "exists"]);
        let name = self.name()?;
        let options = [
            "as",
            "increment",
            "minvalue",
            "no",
            "maxvalue",
            "start",
            "restart",
            "cache",
            "cycle",
            "owned",
        ];
        let action = if options.iter().any(|w| self.next_is(w)) {
            AlterAction::Sequence(Box::new(self.sequence_options()?))
        } else {
            self.action()?
        };
        Ok(Definition::AlterObject {
            kind: Some(DropKind::Sequence),
            if_exists,
            name,
            actions: vec![action],
        })
    }

    fn number(&mut self) -> Result<i64> {
        let sign = if self.p.consume_token(&Token::Minus) { "-" } else { "" };
        let Token::Number(n, _) = &self.p.peek_token_ref().token else {
            return Err(self.error());
        };
        let value = format!("{sign}{n}").parse();
        let value = value
            .map_err(|_| PlanError::new("22003", format!("value \"{sign}{n}\" is out of range for type bigint")))?;
        self.p.next_token();
        Ok(value)
    }

    /// Options of a sequence, in any order.
    fn sequence_options(&mut self) -> Result<SequenceOptions> {
        let mut o = SequenceOptions::default();
        while self.p.peek_token_ref().token != Token::EOF {
            if self.eat(&["as"]) {
                let t = self.p.parse_data_type().map_err(|e| self.cx.error(e))?;
                o.data_type = Some(crate::sql::types::field_of(&t)?.data_type().clone());
            } else if self.eat(&["increment"]) {
                self.eat(&["by"]);
                o.increment = Some(self.number()?);
            } else if self.eat(&["no", "minvalue"]) {
                o.min = Some(None);
            } else if self.eat(&["minvalue"]) {
                o.min = Some(Some(self.number()?));
            } else if self.eat(&["no", "maxvalue"]) {
                o.max = Some(None);
            } else if self.eat(&["maxvalue"]) {
                o.max = Some(Some(self.number()?));
            } else if self.eat(&["start"]) {
                self.eat(&["with"]);
                o.start = Some(self.number()?);
            } else if self.eat(&["restart"]) {
                let with = self.eat(&["with"]);
                let given = with || matches!(self.p.peek_token_ref().token, Token::Number(..) | Token::Minus);
                o.restart = Some(if given { Some(self.number()?) } else { None });
            } else if self.eat(&["cache"]) {
                o.cache = Some(self.number()?);
            } else if self.eat(&["no", "cycle"]) {
                o.cycle = Some(false);
            } else if self.eat(&["cycle"]) {
                o.cycle = Some(true);
            } else if self.eat(&["owned", "by", "none"]) {
                o.owned_by = Some(None);
            } else if self.eat(&["owned", "by"]) {
                let mut table = self.name()?;
                let column = table.0.pop().and_then(|part| part.as_ident().cloned());
                match column {
                    Some(column) if !table.0.is_empty() => o.owned_by = Some(Some((table, column))),
                    _ => {
                        return Err(PlanError::new("42601", "invalid OWNED BY option")
                            .hint("Specify OWNED BY table.column or OWNED BY NONE."));
                    }
                }
            } else {
                return Err(self.error());
            }
        }
        Ok(o)
    }

    fn action(&mut self) -> Result<AlterAction> {
        if self.eat(&["rename", "to"]) {
            return Ok(AlterAction::RenameTo(self.ident()?));
        }
        if self.eat(&["rename", "constraint"]) {
            let from = self.ident()?;
            self.expect(&["to"])?;
            return Ok(AlterAction::RenameConstraint(from, self.ident()?));
        }
        if self.eat(&["rename"]) {
            self.eat(&["column"]);
            let from = self.ident()?;
            self.expect(&["to"])?;
            return Ok(AlterAction::RenameColumn(from, self.ident()?));
        }
        if self.eat(&["set", "schema"]) {
            return Ok(AlterAction::SetSchema(self.ident()?));
        }
        if self.eat(&["add"]) {
            return self.add();
        }
        if self.eat(&["drop", "constraint"]) {
            let if_exists = self.eat(&["if", "exists"]);
            let name = self.ident()?;
            return Ok(AlterAction::DropConstraint {
                name,
                if_exists,
                cascade: self.cascade(),
            });
        }
        if self.eat(&["drop"]) {
            self.skip_action();
            return Ok(refused(
                "ALTER TABLE … DROP COLUMN",
                "Create a new table without it and copy the rows with INSERT … SELECT.",
            ));
        }
        if self.eat(&["alter"]) {
            self.eat(&["column"]);
            return self.alter_column();
        }
        self.without_effect()
    }

    fn without_effect(&mut self) -> Result<AlterAction> {
        let without_effect: [&[&str]; 12] = [
            &["owner", "to"],
            &["cluster", "on"],
            &["set", "without"],
            &["set", "with"],
            &["set", "tablespace"],
            &["set", "logged"],
            &["replica", "identity"],
            &["reset"],
            &["enable"],
            &["disable"],
            &["validate", "constraint"],
            &["depends", "on"],
        ];
        let parameters = self.next_is("set") && self.p.peek_nth_token_ref(1).token == Token::LParen;
        if !parameters && !without_effect.iter().any(|words| self.eat(words)) {
            return Err(self.error());
        }
        self.skip_action();
        Ok(AlterAction::Nothing)
    }

    fn add(&mut self) -> Result<AlterAction> {
        let constraint = ["constraint", "primary", "unique", "check", "foreign", "exclude"];
        if !constraint.iter().any(|w| self.next_is(w)) {
            self.skip_action();
            return Ok(refused(
                "ALTER TABLE … ADD COLUMN",
                "Create a new table with it and copy the rows with INSERT … SELECT.",
            ));
        }
        let parsed = self
            .p
            .parse_optional_table_constraint()
            .map_err(|e| self.cx.error(e))?
            .ok_or_else(|| self.error())?;
        if self.eat(&["not", "valid"]) {
            return Ok(refused("NOT VALID", "Leave it out: the rows are checked at once."));
        }
        Ok(AlterAction::AddConstraint(Box::new(parsed)))
    }

    fn alter_column(&mut self) -> Result<AlterAction> {
        let column = self.ident()?;
        if self.eat(&["set", "not", "null"]) {
            return Ok(AlterAction::SetNotNull(column));
        }
        if self.eat(&["drop", "not", "null"]) {
            return Ok(AlterAction::DropNotNull(column));
        }
        if self.eat(&["set", "default"]) {
            let e = self.p.parse_expr().map_err(|e| self.cx.error(e))?;
            return Ok(AlterAction::SetDefault(column, Box::new(e)));
        }
        if self.eat(&["drop", "default"]) {
            return Ok(AlterAction::DropDefault(column));
        }
        if self.eat(&["set", "statistics"]) || self.eat(&["set", "storage"]) || self.eat(&["set", "compression"]) {
            self.skip_action();
            return Ok(AlterAction::Nothing);
        }
        let what = if self.next_is("type") || self.eat(&["set", "data"]) {
            "ALTER COLUMN … TYPE"
        } else if self.eat(&["add", "generated"]) || self.eat(&["set", "generated"]) || self.eat(&["drop", "identity"])
        {
            "changing the identity of a column"
        } else if self.eat(&["drop", "expression"]) {
            "ALTER COLUMN … DROP EXPRESSION"
        } else {
            return Err(self.error());
        };
        self.skip_action();
        Ok(refused(
            what,
            "Create a new table and copy the rows with INSERT … SELECT.",
        ))
    }

    fn comment(&mut self) -> Result<Definition> {
        let kinds: [(&[&str], DropKind); 8] = [
            (&["table"], DropKind::Table),
            (&["foreign", "table"], DropKind::Source),
            (&["view"], DropKind::View),
            (&["materialized", "view"], DropKind::MaterializedView),
            (&["source"], DropKind::Source),
            (&["sink"], DropKind::Sink),
            (&["sequence"], DropKind::Sequence),
            (&["index"], DropKind::Index),
        ];
        let target = if let Some((_, kind)) = kinds.iter().find(|(words, _)| self.eat(words)) {
            CommentTarget::Object(*kind, self.name()?)
        } else if self.eat(&["column"]) {
            let mut name = self.name()?;
            let column = name.0.pop().and_then(|part| part.as_ident().cloned());
            match column {
                Some(column) if !name.0.is_empty() => CommentTarget::Column(name, column),
                _ => return Err(PlanError::new("42601", "column name must be qualified")),
            }
        } else if self.eat(&["constraint"]) {
            let constraint = self.ident()?;
            self.expect(&["on"])?;
            CommentTarget::Constraint(constraint, self.name()?)
        } else if self.eat(&["schema"]) {
            CommentTarget::Schema(self.ident()?)
        } else {
            let what = self.word(0).ok_or_else(|| self.error())?;
            while !self.next_is("is") {
                if self.p.peek_token_ref().token == Token::EOF {
                    return Err(self.error());
                }
                self.p.next_token();
            }
            CommentTarget::Other(what)
        };
        self.expect(&["is"])?;
        let text = if self.eat(&["null"]) {
            None
        } else {
            Some(self.p.parse_literal_string().map_err(|e| self.cx.error(e))?)
        };
        // An empty comment is none.
        let text = text.filter(|t| !t.is_empty());
        Ok(Definition::Comment { target, text })
    }

    /// `[(options)] [words] [table [(columns)], …]`.
    fn maintain(&mut self, tag: &'static str) -> Result<Definition> {
        if self.p.consume_token(&Token::LParen) {
            while !self.p.consume_token(&Token::RParen) {
                if self.p.peek_token_ref().token == Token::EOF {
                    return Err(self.error());
                }
                self.p.next_token();
            }
        }
        while ["full", "freeze", "verbose", "analyze", "analyse"]
            .iter()
            .any(|w| self.next_is(w))
        {
            self.p.next_token();
        }
        let mut tables = Vec::new();
        if self.p.peek_token_ref().token != Token::EOF {
            loop {
                tables.push(self.name()?);
                if self.p.peek_token_ref().token == Token::LParen {
                    self.p
                        .parse_parenthesized_column_list(sqlparser::parser::IsOptional::Mandatory, false)
                        .map_err(|e| self.cx.error(e))?;
                }
                if !self.p.consume_token(&Token::Comma) {
                    break;
                }
            }
        }
        Ok(Definition::Maintain { tag, tables })
    }
}

fn refused(what: &str, hint: &str) -> AlterAction {
    AlterAction::Refused {
        what: what.to_owned(),
        hint: hint.to_owned(),
    }
}
