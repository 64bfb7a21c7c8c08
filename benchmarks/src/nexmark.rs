//! The Nexmark queries as a user types them, and the figures to compare with.

/// A query and what others need for it.
#[derive(Debug)]
pub struct Query {
    /// Name in the Nexmark suite.
    pub name: &'static str,
    /// Sources that it reads.
    pub sources: &'static [&'static str],
    /// The SELECT.
    pub sql: &'static str,
    /// CPU seconds per million events that it may cost.
    pub floor: f64,
    /// The same of Flink 2.3 on heap, measured on a machine of this kind.
    pub flink: f64,
    /// The same of Feldera's dbsp.
    pub dbsp: f64,
}

/// The queries, in order.
pub const QUERIES: [Query; 13] = [
    Query {
        name: "q0",
        sources: &["bid"],
        sql: "SELECT auction, bidder, price, date_time, extra FROM bid",
        floor: 2.5,
        flink: 5.4,
        dbsp: 2.7,
    },
    Query {
        name: "q1",
        sources: &["bid"],
        sql: "SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM bid",
        floor: 3.0,
        flink: 7.2,
        dbsp: 3.3,
    },
    Query {
        name: "q2",
        sources: &["bid"],
        sql: "SELECT auction, price FROM bid WHERE auction % 123 = 0",
        floor: 2.5,
        flink: 5.4,
        dbsp: 2.8,
    },
    Query {
        name: "q3",
        sources: &["auction", "person"],
        sql: "SELECT p.name, p.city, p.state, a.id FROM auction a INNER JOIN person p ON a.seller = p.id
              WHERE a.category = 10 AND (p.state = 'or' OR p.state = 'id' OR p.state = 'ca')",
        floor: 3.0,
        flink: 7.1,
        dbsp: 2.8,
    },
    Query {
        name: "q4",
        sources: &["auction", "bid"],
        sql: "SELECT q.category, avg(q.final) AS avg_final
              FROM (SELECT max(b.price) AS final, a.category FROM auction a, bid b
                    WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
                    GROUP BY a.id, a.category) q
              GROUP BY q.category",
        floor: 8.0,
        flink: 18.0,
        dbsp: 3.9,
    },
    Query {
        name: "q5",
        sources: &["bid"],
        sql: "SELECT b.auction, b.num
              FROM (SELECT auction, count(*) AS num, window_start AS starttime, window_end AS endtime
                    FROM HOP(bid, date_time, INTERVAL '2' SECOND, INTERVAL '10' SECOND)
                    GROUP BY auction, window_start, window_end) b
              JOIN (SELECT max(c.num) AS maxn, c.starttime, c.endtime
                    FROM (SELECT count(*) AS num, window_start AS starttime, window_end AS endtime
                          FROM HOP(bid, date_time, INTERVAL '2' SECOND, INTERVAL '10' SECOND)
                          GROUP BY auction, window_start, window_end) c
                    GROUP BY c.starttime, c.endtime) m
              ON b.starttime = m.starttime AND b.endtime = m.endtime AND b.num >= m.maxn",
        floor: 5.5,
        flink: 15.0,
        dbsp: 3.7,
    },
    Query {
        name: "q7",
        sources: &["bid"],
        sql: "SELECT b.auction, b.price, b.bidder, b.date_time, b.extra
              FROM bid b JOIN (SELECT max(price) AS maxprice, window_end AS date_time
                               FROM TUMBLE(bid, date_time, INTERVAL '10' SECOND)
                               GROUP BY window_start, window_end) b1 ON b.price = b1.maxprice
              WHERE b.date_time BETWEEN b1.date_time - INTERVAL '10' SECOND AND b1.date_time",
        floor: 8.0,
        flink: 24.0,
        dbsp: 5.3,
    },
    Query {
        name: "q8",
        sources: &["person", "auction"],
        sql: "SELECT p.id, p.name, p.starttime
              FROM (SELECT id, name, window_start AS starttime, window_end AS endtime
                    FROM TUMBLE(person, date_time, INTERVAL '10' SECOND)
                    GROUP BY id, name, window_start, window_end) p
              JOIN (SELECT seller, window_start AS starttime, window_end AS endtime
                    FROM TUMBLE(auction, date_time, INTERVAL '10' SECOND)
                    GROUP BY seller, window_start, window_end) a
              ON p.id = a.seller AND p.starttime = a.starttime AND p.endtime = a.endtime",
        floor: 4.0,
        flink: 9.2,
        dbsp: 2.8,
    },
    Query {
        name: "q9",
        sources: &["auction", "bid"],
        sql: "SELECT id, item_name, description, initial_bid, reserve, date_time, expires, seller, category, extra,
                     auction, bidder, price, bid_date_time, bid_extra
              FROM (SELECT a.*, b.auction, b.bidder, b.price, b.date_time AS bid_date_time, b.extra AS bid_extra,
                           row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time ASC) AS rownum
                    FROM auction a, bid b
                    WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires) ranked
              WHERE rownum <= 1",
        floor: 13.0,
        flink: 30.0,
        dbsp: 9.1,
    },
    Query {
        name: "q15",
        sources: &["bid"],
        sql: "SELECT to_char(date_time, 'YYYY-MM-DD') AS day, count(*) AS total_bids,
                     count(*) FILTER (WHERE price < 10000) AS rank1_bids,
                     count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
                     count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
                     count(DISTINCT bidder) AS total_bidders,
                     count(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
                     count(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders,
                     count(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders,
                     count(DISTINCT auction) AS total_auctions,
                     count(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions,
                     count(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions,
                     count(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions
              FROM bid GROUP BY to_char(date_time, 'YYYY-MM-DD')",
        floor: 7.0,
        flink: 10.0,
        dbsp: 5.0,
    },
    Query {
        name: "q17",
        sources: &["bid"],
        sql: "SELECT auction, to_char(date_time, 'YYYY-MM-DD') AS day, count(*) AS total_bids,
                     count(*) FILTER (WHERE price < 10000) AS rank1_bids,
                     count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
                     count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
                     min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
              FROM bid GROUP BY auction, to_char(date_time, 'YYYY-MM-DD')",
        floor: 9.0,
        flink: 10.0,
        dbsp: 6.3,
    },
    Query {
        name: "q18",
        sources: &["bid"],
        sql: "SELECT auction, bidder, price, channel, url, date_time, extra
              FROM (SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) AS rank_number
                    FROM bid) ranked
              WHERE rank_number <= 1",
        floor: 9.0,
        flink: 11.0,
        dbsp: 5.5,
    },
    Query {
        name: "q20",
        sources: &["auction", "bid"],
        sql:
            "SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time AS bid_date_time, b.extra AS bid_extra,
                     a.item_name, a.description, a.initial_bid, a.reserve, a.date_time AS auction_date_time, a.expires,
                     a.seller, a.category, a.extra AS auction_extra
              FROM bid b INNER JOIN auction a ON b.auction = a.id
              WHERE a.category = 10",
        floor: 8.0,
        flink: 18.0,
        dbsp: 5.1,
    },
];

/// Where a query's result goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// A sink that counts, checksums and drops.
    Sink,
    /// A materialized view.
    View,
}

impl Mode {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sink => "sink",
            Self::View => "view",
        }
    }
}

impl Query {
    /// The statements that make its sources.
    pub fn create_sources(&self, events: u64) -> Vec<String> {
        let create = |kind: &&str| {
            format!(
                "CREATE SOURCE {kind} WITH (connector = 'nexmark', nexmark.event.type = '{kind}', \
                 nexmark.event.limit = '{events}', nexmark.event.time.rate = '100000')"
            )
        };
        self.sources.iter().map(create).collect()
    }

    /// The statement that starts it.
    pub fn create(&self, mode: Mode) -> String {
        match mode {
            Mode::Sink => format!("CREATE SINK result AS {} WITH (connector = 'blackhole')", self.sql),
            Mode::View => format!("CREATE MATERIALIZED VIEW result AS {}", self.sql),
        }
    }
}
