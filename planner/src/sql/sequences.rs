//! Sequences in expressions. A stored default holds a sequence by id, `nextval(16390)`, so that the sequence may be renamed; it is
//! shown by name.

use crate::catalog::Catalog;
use crate::plan::ObjectId;

const CALL: &str = "nextval(";

/// The sequences that a stored expression uses.
pub(super) fn mentioned(text: &str) -> Vec<ObjectId> {
    let mut ids = Vec::new();
    for part in text.split(CALL).skip(1) {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        if let Ok(id) = digits.parse() {
            ids.push(ObjectId(id));
        }
    }
    ids
}

/// A stored expression as clients see it, sequences by name.
pub fn shown_default(text: &str, catalog: &Catalog, name: &dyn Fn(&crate::catalog::CatalogObject) -> String) -> String {
    let mut out = text.to_owned();
    for id in mentioned(text) {
        if let Some(sequence) = catalog.get(id) {
            let call = format!("{CALL}{})", id.0);
            let quoted = name(sequence).replace('\'', "''");
            out = out.replace(&call, &format!("nextval('{quoted}'::regclass)"));
        }
    }
    out
}
