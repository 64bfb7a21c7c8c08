//! Field names → columns.

use hashbrown::HashMap;

/// Finds columns by field name: exactly, or else without regard to case. Records of a source nearly always list the same fields in
/// the same order, so the answer for the *n*th field of the record before is tried first.
#[derive(Debug)]
pub(super) struct Names {
    exact: HashMap<String, usize>,
    /// By lower-cased name; names that only differ in case are left out, they must match exactly.
    folded: HashMap<String, Option<usize>>,
    last: Vec<(String, Option<Match>)>,
}

/// A column that a field's name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) column: usize,
    pub(super) exact: bool,
}

/// Fields of one record whose place is remembered.
const REMEMBERED_MAX: usize = 2048;

impl Names {
    pub(super) fn new<'n>(columns: impl Iterator<Item = &'n str>) -> Self {
        let mut exact = HashMap::new();
        let mut folded: HashMap<String, Option<usize>> = HashMap::new();
        for (i, name) in columns.enumerate() {
            exact.insert(name.to_owned(), i);
            folded
                .entry(name.to_lowercase())
                .and_modify(|same| *same = None)
                .or_insert(Some(i));
        }
        Self {
            exact,
            folded,
            last: Vec::new(),
        }
    }

    /// The column of the record's field number `nth`, if it is one.
    #[inline]
    pub(super) fn find(&mut self, nth: usize, name: &str) -> Option<Match> {
        if let Some((last, found)) = self.last.get(nth)
            && last == name
        {
            return *found;
        }
        self.find_anew(nth, name)
    }

    fn find_anew(&mut self, nth: usize, name: &str) -> Option<Match> {
        let exact = |column| Match { column, exact: true };
        let folded = |column| Match { column, exact: false };
        let found = self.exact.get(name).copied().map(exact).or_else(|| {
            let column = self.folded.get(&name.to_lowercase()).copied().flatten();
            column.map(folded)
        });
        if nth < self.last.len() {
            self.last[nth] = (name.to_owned(), found);
        } else if nth == self.last.len() && nth < REMEMBERED_MAX {
            self.last.push((name.to_owned(), found));
        }
        found
    }
}
