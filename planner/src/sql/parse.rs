//! Text → [`Parsed`] statements.
//!
//! The text is tokenised once and cut at top-level semicolons. A statement whose first words belong to the extension grammar
//! (streaming DDL, session commands, COPY; see [`super::ext`]) is read by that, everything else by sqlparser's PostgreSQL
//! grammar. Depth is bounded before parsing, so that hostile nesting is an error and not a stack overflow.

use std::sync::Arc;

use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer, TokenizerError};

use super::dialect::PgDialect;
use super::{Ast, Parsed, ext, precedence};
use crate::{PlanError, Result};

/// Nesting of parentheses, CASE and unary operators that a statement may have.
const DEPTH_MAX: usize = 48;
/// Operators in one chain (`a OR b OR …`): the tree of a chain is as deep as the chain is long.
const CHAIN_MAX: usize = 1000;
/// Arithmetic operators in one chain: each becomes a call, and DataFusion writes out a call's whole text to name it.
const ARITHMETIC_MAX: usize = 150;

/// The dialect everywhere in this crate.
pub(super) static DIALECT: PgDialect = PgDialect;

/// Line starts, to turn a tokenizer location into a character offset.
#[derive(Debug, Clone)]
pub(super) struct Lines {
    starts: Vec<usize>,
    chars: usize,
}

impl Lines {
    /// Of `text`.
    pub fn new(text: &str) -> Self {
        let mut starts = vec![0];
        let mut chars = 0;
        for c in text.chars() {
            chars += 1;
            if c == '\n' {
                starts.push(chars);
            }
        }
        Self { starts, chars }
    }

    /// 0-based character offset; past the end for an empty location.
    pub fn offset(&self, at: Location) -> usize {
        if at.line == 0 {
            return self.chars;
        }
        let line = usize::try_from(at.line - 1).unwrap_or(usize::MAX);
        let column = usize::try_from(at.column.saturating_sub(1)).unwrap_or(0);
        self.starts.get(line).map_or(self.chars, |s| s + column)
    }
}

/// Splits `sql` into statements and parses each. Empty statements vanish.
///
/// # Errors
/// 42601 with a position in `sql`; 54001 for excessive nesting; 0A000 for grammar that is known and refused.
pub fn parse(sql: &str) -> Result<Vec<Parsed>> {
    let tokens = tokenize(sql)?;
    let lines = Lines::new(sql);
    let chars: Vec<usize> = sql.char_indices().map(|(b, _)| b).chain([sql.len()]).collect();
    let mut parsed = Vec::new();
    for statement in tokens.split(|t| t.token == Token::SemiColon) {
        let mut words = statement.iter().filter(|t| !matches!(t.token, Token::Whitespace(_)));
        let (Some(first), last) = (words.next(), statement.iter().rev().find(|t| !is_space(t))) else {
            continue;
        };
        let last = last.unwrap_or(first);
        let (from, to) = (lines.offset(first.span.start), lines.offset(last.span.end));
        let text = slice(sql, &chars, from, to);
        let local = tokenize(text).map_err(|e| shift(e, from))?;
        parsed.push(parse_one(text, &local, from).map_err(|e| shift(e, from))?);
    }
    Ok(parsed)
}

/// A parser over some of a statement's tokens.
pub(super) fn sub_parser(tokens: Vec<TokenWithSpan>) -> Parser<'static> {
    Parser::new(&DIALECT)
        .with_recursion_limit(DEPTH_MAX)
        .with_tokens_with_locations(tokens)
}

/// Parses one statement out of its tokens; error positions are relative to `text`.
pub(super) fn parse_one(text: &str, tokens: &[TokenWithSpan], offset: usize) -> Result<Parsed> {
    check_depth(tokens)?;
    if let Some(query) = table_command(text, tokens)? {
        return Ok(Parsed {
            text: text.to_owned(),
            offset,
            ast: Ast::Sql(Arc::new(sqlparser::ast::Statement::Query(query))),
        });
    }
    let lines = Lines::new(text);
    let mut parser = sub_parser(super::table::without_overriding(identity_options(tokens)));
    let context = ParseContext {
        text,
        tokens,
        lines: &lines,
    };
    let ast = match ext::parse(&mut parser, &context)? {
        Some(statement) => Ast::Ext(Arc::new(statement)),
        None => {
            let mut statement = parser.parse_statement().map_err(|e| context.error(e))?;
            precedence::settle(&mut statement)?;
            Ast::Sql(Arc::new(statement))
        }
    };
    context.expect_end(&parser)?;
    Ok(Parsed {
        text: text.to_owned(),
        offset,
        ast,
    })
}

/// The grammar takes the options in `IDENTITY (…)` in one order only; PostgreSQL in any.
fn identity_options(tokens: &[TokenWithSpan]) -> Vec<TokenWithSpan> {
    const ORDER: [&str; 6] = ["increment", "minvalue", "maxvalue", "start", "cache", "cycle"];
    let word = |t: &TokenWithSpan| match &t.token {
        Token::Word(w) if w.quote_style.is_none() => w.value.to_lowercase(),
        _ => String::new(),
    };
    let mut out: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    let mut rest = tokens;
    while let Some((first, tail)) = rest.split_first() {
        out.push(first.clone());
        rest = tail;
        if word(first) != "identity" {
            continue;
        }
        let open = rest.iter().position(|t| !is_space(t));
        let (Some(open), Some(close)) = (open, rest.iter().position(|t| t.token == Token::RParen)) else {
            continue;
        };
        if rest[open].token != Token::LParen || close < open {
            continue;
        }
        let mut options: Vec<(usize, Vec<TokenWithSpan>)> = Vec::new();
        let mut no = false;
        for t in &rest[open + 1..close] {
            let w = word(t);
            match ORDER.iter().position(|o| *o == w) {
                Some(rank) if no => {
                    if let Some(last) = options.last_mut() {
                        last.0 = rank;
                        last.1.push(t.clone());
                    }
                    no = false;
                }
                Some(rank) => options.push((rank, vec![t.clone()])),
                None if w == "no" => {
                    options.push((usize::MAX, vec![t.clone()]));
                    no = true;
                }
                None => match options.last_mut() {
                    Some(last) => last.1.push(t.clone()),
                    None => options.push((0, vec![t.clone()])),
                },
            }
        }
        options.sort_by_key(|(rank, _)| *rank);
        out.extend(rest[..=open].iter().cloned());
        out.extend(options.into_iter().flat_map(|(_, tokens)| tokens));
        rest = &rest[close..];
    }
    out
}

/// `TABLE t …` is `SELECT * FROM t …`.
fn table_command(text: &str, tokens: &[TokenWithSpan]) -> Result<Option<Box<sqlparser::ast::Query>>> {
    match tokens.first().map(|t| &t.token) {
        Some(Token::Word(w)) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case("table") => {
            let rest = text.get(w.value.len()..).unwrap_or("");
            parse_query(&format!("SELECT * FROM {rest}"))
                .map(Some)
                .map_err(|mut e| {
                    e.position = None;
                    e
                })
        }
        _ => Ok(None),
    }
}

/// Parses a stored view's query.
pub(super) fn parse_query(text: &str) -> Result<Box<sqlparser::ast::Query>> {
    let tokens = tokenize(text)?;
    check_depth(&tokens)?;
    let lines = Lines::new(text);
    let context = ParseContext {
        text,
        tokens: &tokens,
        lines: &lines,
    };
    let mut parser = sub_parser(tokens.clone());
    let mut query = parser.parse_query().map_err(|e| context.error(e))?;
    precedence::settle(&mut query)?;
    context.expect_end(&parser)?;
    Ok(query)
}

/// Parses one expression, such as a stored DEFAULT.
pub(super) fn parse_expr(text: &str) -> Result<sqlparser::ast::Expr> {
    let tokens = tokenize(text)?;
    let lines = Lines::new(text);
    let context = ParseContext {
        text,
        tokens: &tokens,
        lines: &lines,
    };
    let mut parser = sub_parser(tokens.clone());
    let mut expr = parser.parse_expr().map_err(|e| context.error(e))?;
    precedence::settle(&mut expr)?;
    context.expect_end(&parser)?;
    Ok(expr)
}

/// What the extension parser needs to know of the statement besides its tokens.
pub(super) struct ParseContext<'a> {
    /// Statement text.
    pub text: &'a str,
    /// Its tokens, white space included.
    pub tokens: &'a [TokenWithSpan],
    /// Its lines.
    pub lines: &'a Lines,
}

impl ParseContext<'_> {
    /// PostgreSQL's form of a grammar error.
    pub fn error(&self, error: ParserError) -> PlanError {
        let message = match error {
            ParserError::RecursionLimitExceeded => return too_deep(),
            ParserError::TokenizerError(m) | ParserError::ParserError(m) => m,
        };
        match location_of(&message) {
            Some(at) if at.line > 0 => self.error_at(at, &message),
            _ if message.contains("found: EOF") => self.error_at_end(),
            _ => PlanError::new("42601", lower_first(&message)),
        }
    }

    /// `syntax error at or near` the token that stands at `at`.
    pub fn error_at(&self, at: Location, detail: &str) -> PlanError {
        let token = self.tokens.iter().find(|t| t.span.start == at && !is_space(t));
        let position = self.lines.offset(at) + 1;
        match token {
            Some(t) => {
                let from = self.lines.offset(t.span.start);
                let to = self.lines.offset(t.span.end).max(from + 1);
                let text: String = self.text.chars().skip(from).take(to - from).collect();
                PlanError::new("42601", format!("syntax error at or near \"{text}\"")).at(position)
            }
            None => {
                PlanError::new("42601", lower_first(detail.split(" at Line:").next().unwrap_or(detail))).at(position)
            }
        }
    }

    /// `syntax error` at the token that `parser` would read next.
    pub fn error_here(&self, parser: &Parser<'_>) -> PlanError {
        let next = parser.peek_token();
        if next.token == Token::EOF {
            return self.error_at_end();
        }
        self.error_at(next.span.start, "")
    }

    fn error_at_end(&self) -> PlanError {
        PlanError::new("42601", "syntax error at end of input").at(self.lines.chars + 1)
    }

    /// Nothing may follow.
    pub fn expect_end(&self, parser: &Parser<'_>) -> Result<()> {
        if parser.peek_token().token == Token::EOF {
            return Ok(());
        }
        Err(self.error_here(parser))
    }
}

/// Tokens with locations; errors in PostgreSQL's words.
pub(super) fn tokenize(sql: &str) -> Result<Vec<TokenWithSpan>> {
    Tokenizer::new(&DIALECT, sql)
        .tokenize_with_location()
        .map(is_null)
        .map(group_quantifiers)
        .map(split_signs)
        .map_err(|e| {
            let TokenizerError { message, location } = e;
            let lines = Lines::new(sql);
            let offset = lines.offset(location);
            let rest: String = sql.chars().skip(offset).collect();
            let lower = message.to_lowercase();
            let what = if lower.contains("unterminated string") {
                format!("unterminated quoted string at or near \"{rest}\"")
            } else if lower.contains("close delimiter") {
                format!("unterminated quoted identifier at or near \"{rest}\"")
            } else if lower.contains("comment") {
                format!("unterminated /* comment at or near \"{rest}\"")
            } else {
                format!("syntax error: {}", lower_first(&message))
            };
            PlanError::new("42601", what).at(offset + 1)
        })
}

/// `a>-1` is `a > -1`: as in PostgreSQL, an operator ends in a sign only if it has a character that SQL's own operators do not have.
fn split_signs(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    // How much of an operator of several characters is left without the signs at its end.
    let split = |t: &TokenWithSpan| match &t.token {
        Token::CustomBinaryOperator(op) if !op.contains(|c| "~!@#%^&|`?".contains(c)) => {
            let end = op.trim_end_matches(['+', '-']).len().max(1);
            (end < op.len()).then(|| (op.clone(), end))
        }
        _ => None,
    };
    if !tokens.iter().any(|t| split(t).is_some()) {
        return tokens;
    }
    let mut out = Vec::with_capacity(tokens.len() + 1);
    for t in tokens {
        let Some((op, end)) = split(&t) else {
            out.push(t);
            continue;
        };
        let mut at = t.span.start;
        let mut put = |text: &str| {
            let mut span = t.span;
            span.start = at;
            at.column += text.len() as u64;
            span.end = at;
            let token = match text {
                "<" => Token::Lt,
                ">" => Token::Gt,
                "<=" => Token::LtEq,
                ">=" => Token::GtEq,
                "<>" => Token::Neq,
                "=" => Token::Eq,
                "*" => Token::Mul,
                "/" => Token::Div,
                "+" => Token::Plus,
                "-" => Token::Minus,
                other => Token::CustomBinaryOperator(other.to_owned()),
            };
            out.push(TokenWithSpan { token, span });
        };
        put(&op[..end]);
        (end..op.len()).for_each(|i| put(&op[i..=i]));
    }
    out
}

/// `x ISNULL` is `x IS NULL`; the grammar would read an alias.
fn is_null(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let found = |t: &TokenWithSpan| matches!(&t.token, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case("isnull"));
    if !tokens.iter().any(found) {
        return tokens;
    }
    let mut out: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len() + 1);
    for t in tokens {
        let before = out.iter().rev().find(|t| !is_space(t)).map(|t| &t.token);
        let operand = match before {
            None | Some(Token::Period | Token::Comma | Token::LParen) => false,
            Some(Token::Word(w)) => w.quote_style.is_some() || !w.value.eq_ignore_ascii_case("as"),
            Some(_) => true,
        };
        if operand && found(&t) {
            let span = t.span;
            out.extend(["IS", "NULL"].map(|k| TokenWithSpan::new(Token::make_keyword(k), span)));
        } else {
            out.push(t);
        }
    }
    out
}

/// `GROUP BY ALL a` is `GROUP BY a`; `GROUP BY DISTINCT a` says so in its first key.
fn group_quantifiers(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let word = |t: &TokenWithSpan, text: &str| matches!(&t.token, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(text));
    if !tokens.iter().any(|t| word(t, "group")) {
        return tokens;
    }
    let mut out: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len() + 1);
    for t in tokens {
        let mut before = out.iter().rev().filter(|t| !is_space(t));
        let (last, first) = (before.next(), before.next());
        let grouping = last.is_some_and(|t| word(t, "by")) && first.is_some_and(|t| word(t, "group"));
        if grouping && word(&t, "distinct") {
            let mark = Token::make_word(super::grouping::GROUP_DISTINCT, Some('"'));
            out.extend([mark, Token::Comma].map(|token| TokenWithSpan::new(token, t.span)));
        } else if !(grouping && word(&t, "all")) {
            out.push(t);
        }
    }
    out
}

/// Refuses what would make the recursive parser, binder or tree destructor run out of stack, or of time.
fn check_depth(tokens: &[TokenWithSpan]) -> Result<()> {
    let (mut all, mut arithmetic) = (Chains::new(), Chains::new());
    for t in tokens {
        match &t.token {
            Token::LParen | Token::LBracket => {
                all.open();
                arithmetic.open();
            }
            Token::RParen | Token::RBracket => {
                all.close();
                arithmetic.close();
            }
            Token::Comma => {
                all.cut();
                arithmetic.cut();
            }
            Token::Word(w)
                if w.quote_style.is_none()
                    && ["and", "or", "not", "union", "except", "intersect", "join", "case"]
                        .iter()
                        .any(|k| w.value.eq_ignore_ascii_case(k)) =>
            {
                all.bump();
                arithmetic.cut();
            }
            Token::StringConcat | Token::DoubleColon => all.bump(),
            Token::Plus | Token::Minus | Token::Mul | Token::Div | Token::Mod => {
                all.bump();
                arithmetic.bump();
            }
            _ => {}
        }
        if all.total > CHAIN_MAX || all.lengths.len() > DEPTH_MAX || arithmetic.total > ARITHMETIC_MAX {
            return Err(too_deep());
        }
    }
    Ok(())
}

/// Operators seen in the chains that are open, one chain a pair of parentheses.
struct Chains {
    lengths: Vec<usize>,
    total: usize,
}

impl Chains {
    fn new() -> Self {
        Self {
            lengths: vec![0],
            total: 0,
        }
    }

    fn open(&mut self) {
        self.lengths.push(0);
    }

    fn close(&mut self) {
        if self.lengths.len() > 1 {
            self.total -= self.lengths.pop().unwrap_or(0);
        }
    }

    /// A new chain begins.
    fn cut(&mut self) {
        if let Some(top) = self.lengths.last_mut() {
            self.total -= *top;
            *top = 0;
        }
    }

    fn bump(&mut self) {
        if let Some(top) = self.lengths.last_mut() {
            *top += 1;
            self.total += 1;
        }
    }
}

pub(super) fn too_deep() -> PlanError {
    PlanError::new("54001", "statement is too complex")
        .detail("its expressions are nested too deeply")
        .hint("Split it with WITH clauses or views, or use IN with a list instead of a chain of OR.")
}

pub(super) fn is_space(t: &TokenWithSpan) -> bool {
    matches!(t.token, Token::Whitespace(_))
}

fn slice<'a>(sql: &'a str, chars: &[usize], from: usize, to: usize) -> &'a str {
    let end = chars.get(to).copied().unwrap_or(sql.len());
    let start = chars.get(from).copied().unwrap_or(end);
    &sql[start..end.max(start)]
}

fn shift(mut e: PlanError, by: usize) -> PlanError {
    e.position = e.position.map(|p| p + by);
    e
}

/// sqlparser appends ` at Line: l, Column: c` to its messages.
fn location_of(message: &str) -> Option<Location> {
    let (_, tail) = message.rsplit_once(" at Line: ")?;
    let (line, column) = tail.split_once(", Column: ")?;
    let digits = |s: &str| -> Option<u64> {
        s.chars()
            .take_while(char::is_ascii_digit)
            .collect::<String>()
            .parse()
            .ok()
    };
    Some(Location::new(digits(line)?, digits(column)?))
}

fn lower_first(s: &str) -> String {
    let mut chars = s.chars();
    match chars.next() {
        Some(c) => c.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}
