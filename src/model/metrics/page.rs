//! The layout of a page: words of 64 bits, in the byte order of the host. Several processes add to one page at the same
//! time, and each of these processes may die between any two instructions.
//!
//! ```text
//! header    magic, version, the page's own number, rows in use of topics and of nodes
//! indexes   of topics and of nodes: 48 bits of a name's hash, and its row
//! nodes     rows; a row has the length of the name, the name, and the cells
//! topics    rows, at the end of the file; the used rows come first, so that the rest of the file stays a hole
//! ```
//!
//! A name gets its row by one compare-and-swap in the index. If the process that claimed a row died before it wrote the
//! name, the next process that finds the row writes the name. Row 0 is for all names that have no row. A row that is in
//! the index is never given back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::cells::RowCells;
use super::{NODE_CELLS, OTHER, TOPIC_CELLS, page_1};

/// The version of the layout. Each version has its own file, so that no release writes into the file of another
/// version. A page of version 1 is only read.
pub const VERSION: u64 = 2;

const MAGIC: u64 = u64::from_be_bytes(*b"dqcounts");

/// The number of words of the header, and the place of each value in the header.
const HEADER: usize = 512;
const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 1;
const AT_NUMBER: usize = 2;
const AT_TOPICS: usize = 3;
const AT_NODES: usize = 4;

/// The longest name, in words: as long as the name of a topic.
const NAME_WORDS: usize = 16;
/// How many words of a row come before its cells: one word for the length of the name, and the words of the name.
const ROW_HEAD: usize = 1 + NAME_WORDS;

/// How many places of the index are tried for a name. If other names have taken all of these places, the name gets no
/// row.
const PROBES: usize = 64;

/// The rows of the topics or the rows of the nodes, and their place in the page. All values are in words, except the
/// numbers of rows.
#[derive(Debug, Clone, Copy)]
struct TableLayout {
    /// The word of the header that says how many rows are in use.
    used: usize,
    index_at: usize,
    /// How many places the index has: a power of two.
    index: usize,
    rows_at: usize,
    rows: usize,
    row: usize,
    cells: usize,
}

const TOPICS: TableLayout = TableLayout {
    used: AT_TOPICS,
    index_at: HEADER,
    index: 8192,
    rows_at: NODES.rows_at + NODES.rows * NODES.row,
    rows: 4096,
    row: 512,
    cells: TOPIC_CELLS,
};

/// The topics in a page of version 1.
const TOPICS_1: TableLayout = TableLayout { row: page_1::ROW, cells: page_1::TOPIC_CELLS, ..TOPICS };

const NODES: TableLayout = TableLayout {
    used: AT_NODES,
    index_at: HEADER + 8192,
    index: 256,
    rows_at: HEADER + 8192 + 256,
    rows: 64,
    row: 256,
    cells: NODE_CELLS,
};

const _: () = assert!(ROW_HEAD + TOPIC_CELLS <= TOPICS.row && ROW_HEAD + NODE_CELLS <= NODES.row);

/// How many words a page has.
pub const WORDS: usize = TOPICS.rows_at + TOPICS.rows * TOPICS.row;

/// How many words a page of version 1 has.
const WORDS_1: usize = TOPICS_1.rows_at + TOPICS_1.rows * TOPICS_1.row;

/// How many bytes a page of version 1 has.
pub const BYTES_1: usize = WORDS_1 * 8;

/// How many bytes a page has.
pub const BYTES: usize = WORDS * 8;

/// How many bytes come before the rows of topics.
pub const FIXED_BYTES: usize = TOPICS.rows_at * 8;

/// How many bytes the row of a topic has.
pub const ROW_BYTES: usize = TOPICS.row * 8;

/// A page. It has [`WORDS`] words, or as many words as a page of version 1.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a>(&'a [AtomicU64]);

/// FNV-1a.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns the words of a name.
fn words(name: &str) -> impl Iterator<Item = u64> {
    name.as_bytes().chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    })
}

impl<'a> Page<'a> {
    /// Makes a page from these words. None: no version of the layout has this number of words.
    pub fn new(words: &'a [AtomicU64]) -> Option<Page<'a>> {
        [WORDS, WORDS_1].contains(&words.len()).then_some(Page(words))
    }

    /// Begins a new page. Before the call, all words of the page must be 0, and no other process must see the page.
    pub fn begin(self, number: u64) {
        for (at, value) in
            [(AT_NUMBER, number), (AT_TOPICS, 1), (AT_NODES, 1), (AT_VERSION, VERSION), (AT_MAGIC, MAGIC)]
        {
            self.0[at].store(value, Ordering::Release);
        }
        for table in [TOPICS, NODES] {
            self.write_name(table, 0, OTHER);
        }
    }

    /// Returns whether the page has this layout.
    pub fn is_good(self) -> bool {
        self.0.len() == WORDS && self.has_version(VERSION)
    }

    /// Returns whether the page has the layout of version 1. The numbers of such a page can be read, but nothing may be
    /// added to them.
    pub fn is_of_version_1(self) -> bool {
        self.0.len() == WORDS_1 && self.has_version(1)
    }

    fn has_version(self, version: u64) -> bool {
        let at = |at: usize| self.0[at].load(Ordering::Acquire);
        let fits = |table: TableLayout| (1..=table.rows as u64).contains(&at(table.used));
        at(AT_MAGIC) == MAGIC && at(AT_VERSION) == version && fits(TOPICS) && fits(NODES)
    }

    /// Returns the number of the page, which no other page has.
    pub fn number(self) -> u64 {
        self.0[AT_NUMBER].load(Ordering::Relaxed)
    }

    /// Returns how many rows of topics are in use.
    pub fn topics_used(self) -> usize {
        self.0[AT_TOPICS].load(Ordering::Relaxed) as usize
    }

    /// Returns the numbers of a topic. None: the topic has no row.
    #[inline]
    pub fn topic(self, name: &str) -> Option<RowCells<'a>> {
        self.find_row(TOPICS, name).ok().map(|row| self.cells(TOPICS, row))
    }

    /// Returns the numbers of a topic. A topic without a row gets a row. If no row is left, returns the numbers of
    /// [`OTHER`].
    pub fn claim_topic(self, name: &str) -> RowCells<'a> {
        self.cells(TOPICS, self.claim(TOPICS, name))
    }

    /// Returns the numbers of a node. A node without a row gets a row. If no row is left, returns the numbers of
    /// [`OTHER`].
    pub fn claim_node(self, name: &str) -> RowCells<'a> {
        self.cells(NODES, self.claim(NODES, name))
    }

    /// Returns the numbers for topics that have no row.
    pub fn other_topics(self) -> RowCells<'a> {
        self.cells(TOPICS, 0)
    }

    /// Returns all topics that have a row, and their numbers.
    pub fn topics(self) -> BTreeMap<String, Vec<u64>> {
        if self.is_of_version_1() {
            let topics = self.read(TOPICS_1).into_iter();
            return topics.map(|(name, cells)| (name, page_1::current_cells(&cells))).collect();
        }
        self.read(TOPICS)
    }

    /// Returns all nodes that have a row, and their numbers.
    pub fn nodes(self) -> BTreeMap<String, Vec<u64>> {
        self.read(NODES)
    }

    fn row(self, table: TableLayout, row: usize) -> &'a [AtomicU64] {
        &self.0[table.rows_at + row * table.row..][..table.row]
    }

    fn cells(self, table: TableLayout, row: usize) -> RowCells<'a> {
        RowCells(&self.row(table, row)[ROW_HEAD..][..table.cells])
    }

    /// Returns the row of a name. `Err`: the name has no row. The error holds the first free place of the index for the
    /// name, or `None` if all places for the name are taken.
    fn find_row(self, table: TableLayout, name: &str) -> Result<usize, Option<&'a AtomicU64>> {
        let hash = hash(name);
        for probe in 0..PROBES {
            let place = &self.0[table.index_at + ((hash as usize + probe) & (table.index - 1))];
            match place.load(Ordering::Acquire) {
                0 => return Err(Some(place)),
                // A damaged page may hold the number of a row that does not exist.
                word if (word ^ hash) >> 16 == 0 && (word as usize & 0xffff) < table.rows => {
                    let row = word as usize & 0xffff;
                    if self.is_of(table, row, name) {
                        return Ok(row);
                    }
                }
                _ => {}
            }
        }
        Err(None)
    }

    fn claim(self, table: TableLayout, name: &str) -> usize {
        if name.is_empty() || name.len() > NAME_WORDS * 8 {
            return 0;
        }
        loop {
            let place = match self.find_row(table, name) {
                Ok(row) => return row,
                Err(None) => return 0,
                Err(Some(place)) => place,
            };
            let used = &self.0[table.used];
            let next = |n: u64| (n < table.rows as u64).then_some(n + 1);
            let Ok(row) = used.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) else { return 0 };
            let word = hash(name) & !0xffff | row;
            if place.compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                self.write_name(table, row as usize, name);
                return row as usize;
            }
            // Another process has taken this place of the index meanwhile, perhaps for the same name. If the new row of
            // this process is still the last row, this row is given back. Otherwise the row stays unused.
            let _ = used.compare_exchange(row + 1, row, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Returns whether a row belongs to a name. A row without a written name counts as a row of `name`, because the
    /// hash in the index fits. The process that claimed the row has died, or is about to write the same name.
    fn is_of(self, table: TableLayout, row: usize, name: &str) -> bool {
        let words_of = self.row(table, row);
        match words_of[0].load(Ordering::Acquire) {
            0 => {
                self.write_name(table, row, name);
                true
            }
            length => {
                length == name.len() as u64
                    && words(name).zip(&words_of[1..ROW_HEAD]).all(|(w, at)| at.load(Ordering::Relaxed) == w)
            }
        }
    }

    fn write_name(self, table: TableLayout, row: usize, name: &str) {
        let words_of = self.row(table, row);
        for (word, at) in words(name).zip(&words_of[1..ROW_HEAD]) {
            at.store(word, Ordering::Relaxed);
        }
        words_of[0].store(name.len() as u64, Ordering::Release);
    }

    fn read(self, table: TableLayout) -> BTreeMap<String, Vec<u64>> {
        let used = (self.0[table.used].load(Ordering::Acquire) as usize).min(table.rows);
        let mut read: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for row in 0..used {
            let row = self.row(table, row);
            let length = (row[0].load(Ordering::Acquire) as usize).min(NAME_WORDS * 8);
            let bytes: Vec<u8> =
                row[1..ROW_HEAD].iter().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()).collect();
            let name = String::from_utf8_lossy(&bytes[..length]).into_owned();
            let cells = row[ROW_HEAD..][..table.cells].iter().map(|cell| cell.load(Ordering::Relaxed));
            // A row without a name holds no numbers. No process uses the row, or the process that claimed the row has
            // not written the name yet.
            if length > 0 {
                let sums = read.entry(name).or_insert_with(|| vec![0; table.cells]);
                sums.iter_mut().zip(cells).for_each(|(sum, cell)| *sum = sum.wrapping_add(cell));
            }
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<AtomicU64> {
        let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        Page::new(&words).unwrap().begin(7);
        words
    }

    #[test]
    fn threads_with_the_same_names_share_rows_and_lose_no_counts() {
        let words = words();
        let page = Page::new(&words).unwrap();
        let start = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    for n in 0..20_000 {
                        page.claim_topic(&format!("topic-{}", n % 100)).add(3, 1);
                    }
                    start.wait();
                    // The row is looked up each time, so that the compiler does not combine the additions.
                    (0..4_000_000).for_each(|_| page.claim_topic("topic-0").add(4, 1));
                });
            }
        });
        assert_eq!(page.topics()["topic-0"][4], 16_000_000);
        let topics = page.topics();
        assert_eq!(topics.len(), 101, "and what has no row");
        for n in 0..100 {
            assert_eq!(topics[&format!("topic-{n}")][3], 800);
        }
        assert!(page.is_good() && page.number() == 7);
        assert!(page.topics_used() < 150, "{}", page.topics_used());
    }

    #[test]
    fn an_unnamed_row_of_a_dead_claimer_is_named_by_the_next_one() {
        let words = words();
        let page = Page::new(&words).unwrap();
        page.claim_topic("t").add(0, 5);
        let Ok(row) = page.find_row(TOPICS, "t") else { panic!("it has a row") };
        page.row(TOPICS, row)[0].store(0, Ordering::Release);
        page.claim_topic("t").add(0, 1);
        assert_eq!((page.topics()["t"][0], page.topics_used()), (6, 2));
    }

    #[test]
    fn extra_names_and_invalid_names_are_counted_together() {
        let words = words();
        let page = Page::new(&words).unwrap();
        for n in 0..TOPICS.rows + 50 {
            page.claim_topic(&format!("t{n}")).add(0, 1);
        }
        page.claim_topic("").add(0, 1);
        page.claim_topic(&"x".repeat(129)).add(0, 1);
        let topics = page.topics();
        assert_eq!(topics.values().map(|cells| cells[0]).sum::<u64>(), TOPICS.rows as u64 + 52);
        assert!(topics[OTHER][0] >= 53);
        assert_eq!(page.topic("t7").is_some(), topics.contains_key("t7"));
        assert!(page.topic("none").is_none());
    }

    #[test]
    fn what_is_no_page_of_this_layout_is_none() {
        let words = words();
        let page = Page::new(&words).unwrap();
        assert!(page.is_good());
        words[AT_VERSION].store(VERSION + 1, Ordering::Relaxed);
        assert!(!page.is_good());
        words[AT_VERSION].store(VERSION, Ordering::Relaxed);
        words[AT_TOPICS].store(1 << 40, Ordering::Relaxed);
        assert!(!page.is_good());
        assert!(Page::new(&words[1..]).is_none());
    }
}
