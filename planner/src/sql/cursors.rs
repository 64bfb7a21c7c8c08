//! Grammar of DECLARE, FETCH, MOVE and CLOSE.

use sqlparser::keywords::Keyword;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::Token;

use super::ast::{ExtStatement, FetchTo};
use super::ext::{fold, skip, word_is};
use super::parse::ParseContext;
use crate::Result;

/// `DECLARE name [BINARY] [ASENSITIVE | INSENSITIVE] [[NO] SCROLL] CURSOR [WITH HOLD | WITHOUT HOLD] FOR query`.
pub(super) fn declare(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    skip(p, 1);
    let name = fold(&p.parse_identifier().map_err(|e| cx.error(e))?);
    let (mut binary, mut scroll, mut hold) = (false, None, false);
    loop {
        if word_is(p, "binary") {
            binary = true;
        } else if word_is(p, "no") {
            skip(p, 1);
            if !word_is(p, "scroll") {
                return Err(cx.error_here(p));
            }
            scroll = Some(false);
        } else if word_is(p, "scroll") {
            scroll = Some(true);
        } else if !word_is(p, "insensitive") && !word_is(p, "asensitive") {
            break;
        }
        skip(p, 1);
    }
    if !word_is(p, "cursor") {
        return Err(cx.error_here(p));
    }
    skip(p, 1);
    if word_is(p, "with") || word_is(p, "without") {
        hold = word_is(p, "with");
        skip(p, 1);
        if !word_is(p, "hold") {
            return Err(cx.error_here(p));
        }
        skip(p, 1);
    }
    p.expect_keyword(Keyword::FOR).map_err(|e| cx.error(e))?;
    let mut query = p.parse_query().map_err(|e| cx.error(e))?;
    super::precedence::settle(&mut query)?;
    Ok(ExtStatement::DeclareCursor {
        name,
        binary,
        scroll,
        hold,
        query,
    })
}

/// `FETCH | MOVE [direction] [FROM | IN] name`.
pub(super) fn fetch(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    let only_move = word_is(p, "move");
    skip(p, 1);
    let to = direction(p, cx)?;
    if word_is(p, "from") || word_is(p, "in") {
        skip(p, 1);
    }
    let name = p.parse_identifier().map_err(|e| cx.error(e))?;
    Ok(ExtStatement::Fetch {
        name: fold(&name),
        to,
        only_move,
    })
}

fn direction(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<FetchTo> {
    // A direction's word is a name if nothing but the end follows it: FETCH first.
    let alone = p.peek_nth_token(1).token == Token::EOF;
    let word = match &p.peek_token_ref().token {
        Token::Word(w) if w.quote_style.is_none() && !alone => w.value.to_lowercase(),
        Token::Word(_) => return Ok(FetchTo::Forward(1)),
        _ => return count(p, cx)?.map(FetchTo::Forward).ok_or_else(|| cx.error_here(p)),
    };
    let known = [
        "next", "prior", "first", "last", "absolute", "relative", "all", "forward", "backward",
    ];
    if !known.contains(&word.as_str()) {
        return Ok(FetchTo::Forward(1));
    }
    skip(p, 1);
    let needed = |n: Option<i64>, p: &Parser<'_>| n.ok_or_else(|| cx.error_here(p));
    Ok(match word.as_str() {
        "next" => FetchTo::Forward(1),
        "prior" => FetchTo::Forward(-1),
        "first" => FetchTo::Absolute(1),
        "last" => FetchTo::Absolute(-1),
        "absolute" => {
            let n = count(p, cx)?;
            FetchTo::Absolute(needed(n, p)?)
        }
        "relative" => {
            let n = count(p, cx)?;
            FetchTo::Relative(needed(n, p)?)
        }
        "all" => FetchTo::All,
        forward => {
            let sign = if forward == "forward" { 1 } else { -1 };
            if word_is(p, "all") {
                skip(p, 1);
                if sign > 0 { FetchTo::All } else { FetchTo::BackwardAll }
            } else {
                FetchTo::Forward(sign * count(p, cx)?.unwrap_or(1))
            }
        }
    })
}

/// A signed number, if one stands here.
fn count(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<Option<i64>> {
    let minus = p.consume_token(&Token::Minus);
    if !minus {
        let _noise = p.consume_token(&Token::Plus);
    }
    let Token::Number(n, _) = p.peek_token().token else {
        return Ok(None);
    };
    let n: i64 = n.parse().map_err(|_| cx.error_here(p))?;
    skip(p, 1);
    Ok(Some(if minus { -n } else { n }))
}

/// `CLOSE name | ALL`.
pub(super) fn close(p: &mut Parser<'_>, cx: &ParseContext<'_>) -> Result<ExtStatement> {
    skip(p, 1);
    if word_is(p, "all") {
        skip(p, 1);
        return Ok(ExtStatement::CloseCursor(None));
    }
    let name = p.parse_identifier().map_err(|e| cx.error(e))?;
    Ok(ExtStatement::CloseCursor(Some(fold(&name))))
}
